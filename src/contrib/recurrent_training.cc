// The recurrent layers of ONNX Runtime's training graphs. Their first results are those of ONNX's
// LSTM and GRU. The others are what its operators of gradients read: the gates after their
// activations and, of an LSTM, the cells of all steps. They follow from the states of all steps.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "contrib/contrib.h"

namespace steep {
namespace {

const std::vector<Attribute> kAttributesOfLstm = {
    {"clip", 0.0}, {"direction", "forward"}, {"hidden_size", 0}, {"input_forget", 0}};
const std::vector<Attribute> kAttributesOfGru = {
    {"clip", 0.0}, {"direction", "forward"}, {"hidden_size", 0}, {"linear_before_reset", 0}};
const std::vector<std::string_view> kLists = {"activation_alpha", "activation_beta", "activations"};

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

/// ONNX Runtime computes these operators with Sigmoid and Tanh only.
void check_activations(const ContribCall& c, std::span<const std::string_view> known) {
  const Attr* attr = c.attrs.find("activations");
  const auto* names = attr == nullptr ? nullptr : std::get_if<Strings>(attr);
  for (size_t i = 0; names != nullptr && i < names->size(); ++i) {
    if (in_lower_case((*names)[i]) == known[i % known.size()]) continue;
    c.fail("An activation is not supported.", fmt::format("{}", known[i % known.size()]),
           (*names)[i], "Write ONNX's operator of the same layer, which has others.");
  }
}

std::string direction(const ContribCall& c) {
  const std::string text = c.text("direction");
  for (const char* known : {"forward", "reverse", "bidirectional"}) {
    if (text == known) return text;
  }
  c.fail("An attribute has a value that Steep does not know.",
         "direction = forward, reverse or bidirectional", fmt::format("direction = {}", text),
         "Export the model again.");
}

int64_t hidden_size(const ContribCall& c) {
  const int64_t size = c.integer("hidden_size");
  return size > 0 ? size : c.extent(2, -1);
}

/// ONNX's name of a type of floats, in the text form of graphs.
std::string_view name_in_text(DType dtype) {
  return dtype == DType::f64    ? "double"
         : dtype == DType::f16  ? "float16"
         : dtype == DType::bf16 ? "bfloat16"
                                : "float";
}

/// Refuses what the gates of all steps are not computed for.
void check_gates(const ContribCall& c, size_t lens) {
  const bool forget = c.attrs.integer("input_forget", 0) != 0;
  if (c.text("direction") == "forward" && c.real("clip") <= 0 && !forget && !c.has(lens)) return;
  c.fail("The gates of this layer are not computed.",
         "direction = forward, without clip, input_forget and sequence lengths",
         fmt::format("direction = {}, clip = {}, input_forget = {}{}", c.text("direction"),
                     c.real("clip"), forget ? 1 : 0, c.has(lens) ? ", sequence lengths" : ""),
         "Leave out the results for the operator of gradients: Steep has its own.");
}

/// Products of all steps: xw with the inputs, and r for those with the states before each step,
/// h [steps, batch, hidden]. `y` are the states after each step. Biases are wb and rb.
void add_products(const ContribCall& c, ContribBody& f, size_t bias, const std::string& h0) {
  f.ints("axis0", {0});
  f.ints("axis1", {1});
  f.ints("end", {-1});
  f.scalar("zero", 0, "X");
  f.add(
      "ys = Squeeze (y, axis1)  shape = Shape <start = 1> (ys)  none = Expand (zero, shape)"
      "  early = Slice (ys, axis0, end, axis0)");
  f.add(h0.empty() ? "first = Unsqueeze (none, axis0)" : fmt::format("first = Identity ({})", h0));
  f.add(
      "h = Concat <axis = 0> (first, early)"
      "  w_rows = Squeeze (W, axis0)  w = Transpose <perm = [1, 0]> (w_rows)"
      "  r_rows = Squeeze (R, axis0)  r = Transpose <perm = [1, 0]> (r_rows)"
      "  xw_plain = MatMul (X, w)");
  if (!c.has(bias)) return f.add("xw = Identity (xw_plain)  rb = Identity (zero)");
  f.add(
      "b = Squeeze (B, axis0)  wb, rb = Split <axis = 0, num_outputs = 2> (b)"
      "  xw = Add (xw_plain, wb)");
}

Results lstm(const ContribCall& c, ContribBody& f) {
  constexpr size_t kBias = 3, kLens = 4, kH0 = 5, kC0 = 6, kPeepholes = 7;
  constexpr size_t kCells = 3, kGates = 4;
  check_activations(c, std::array<std::string_view, 3>{"sigmoid", "tanh", "tanh"});
  f.add(
      fmt::format("y, y_h, y_c = LSTM <direction = \"{}\", hidden_size = {}, input_forget = {}> "
                  "(X, W, R, B, SL, Ht0, Ct0, P)",
                  direction(c), hidden_size(c), c.flag("input_forget") ? 1 : 0));
  if (c.real("clip") > 0) f.real("clip", c.real("clip"));
  if (!c.wants(kCells) && !c.wants(kGates)) return {"y", "y_h", "y_c"};
  check_gates(c, kLens);
  add_products(c, f, kBias, c.has(kH0) ? "Ht0" : "");
  f.add("hr = MatMul (h, r)  hrb = Add (hr, rb)  products = Add (xw, hrb)");
  f.add(c.has(kC0) ? "first_c = Squeeze (Ct0, axis0)" : "first_c = Identity (none)");
  if (c.has(kPeepholes)) {
    f.add("p = Squeeze (P, axis0)  p_i, p_o, p_f = Split <axis = 0, num_outputs = 3> (p)");
  } else {
    f.add("p_i = Identity (zero)  p_o = Identity (zero)  p_f = Identity (zero)");
  }
  const std::string type(name_in_text(c.inputs[0].dtype));
  f.add(fmt::format(
      "last, cells, gates = Scan <num_scan_inputs = 1, body = step "
      "({0}[batch, hidden] c_in, {0}[batch, width] s) => "
      "({0}[batch, hidden] c_out, {0}[batch, hidden] c_kept, {0}[batch, width] kept) {{"
      "  s_i, s_o, s_f, s_c = Split <axis = -1, num_outputs = 4> (s)"
      "  c_i = Mul (p_i, c_in)  a_i = Add (s_i, c_i)  g_i = Sigmoid (a_i)"
      "  c_f = Mul (p_f, c_in)  a_f = Add (s_f, c_f)  g_f = Sigmoid (a_f)"
      "  g_c = Tanh (s_c)  old = Mul (g_f, c_in)  new = Mul (g_i, g_c)  c_out = Add (old, new)"
      "  c_o = Mul (p_o, c_out)  a_o = Add (s_o, c_o)  g_o = Sigmoid (a_o)"
      "  c_kept = Identity (c_out)  kept = Concat <axis = -1> (g_i, g_o, g_f, g_c) }}> "
      "(first_c, products)",
      type));
  f.add("all_cells = Unsqueeze (cells, axis1)  iofc = Unsqueeze (gates, axis1)");
  return {"y", "y_h", "y_c", "all_cells", "iofc"};
}

Results gru(const ContribCall& c, ContribBody& f) {
  constexpr size_t kBias = 3, kLens = 4, kH0 = 5;
  constexpr size_t kGates = 2;
  check_activations(c, std::array<std::string_view, 2>{"sigmoid", "tanh"});
  const bool before = c.flag("linear_before_reset");
  f.add(
      fmt::format("y, y_h = GRU <direction = \"{}\", hidden_size = {}, linear_before_reset = {}> "
                  "(X, W, R, B, SL, H0)",
                  direction(c), hidden_size(c), before ? 1 : 0));
  if (c.real("clip") > 0) f.real("clip", c.real("clip"));
  if (!c.wants(kGates)) return {"y", "y_h"};
  check_gates(c, kLens);
  add_products(c, f, kBias, c.has(kH0) ? "H0" : "");
  f.add(
      "x_z, x_r, x_h = Split <axis = -1, num_outputs = 3> (xw)"
      "  r_z, r_r, r_h = Split <axis = -1, num_outputs = 3> (r)");
  f.add(c.has(kBias) ? "b_z, b_r, b_h = Split <axis = -1, num_outputs = 3> (rb)"
                     : "b_z = Identity (zero)  b_r = Identity (zero)  b_h = Identity (zero)");
  for (const char gate : {'z', 'r'}) {
    f.add(
        fmt::format("h_{0} = MatMul (h, r_{0})  hb_{0} = Add (h_{0}, b_{0})"
                    "  a_{0} = Add (x_{0}, hb_{0})  g_{0} = Sigmoid (a_{0})",
                    gate));
  }
  f.add(before ? "h_h = MatMul (h, r_h)  hb_h = Add (h_h, b_h)  late = Mul (g_r, hb_h)"
               : "reset = Mul (g_r, h)  h_h = MatMul (reset, r_h)  late = Add (h_h, b_h)");
  f.add(
      "a_h = Add (x_h, late)  g_h = Tanh (a_h)"
      "  gates = Concat <axis = -1> (g_z, g_r, g_h)  zrh = Unsqueeze (gates, axis1)");
  return {"y", "y_h", "zrh"};
}

}  // namespace

extern const ContribOp kContribLSTMTraining = {
    .name = "LSTMTraining",
    .inputs = {"X", "W", "R", "B?", "SL?", "Ht0?", "Ct0?", "P?"},
    .outputs = 5,
    .attributes = kAttributesOfLstm,
    .lists = kLists,
    .build = lstm};
extern const ContribOp kContribGRUTraining = {.name = "GRUTraining",
                                              .inputs = {"X", "W", "R", "B?", "SL?", "H0?"},
                                              .outputs = 3,
                                              .attributes = kAttributesOfGru,
                                              .lists = kLists,
                                              .build = gru};

}  // namespace steep
