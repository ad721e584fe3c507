// Convolutions and products with the activation that follows them.
#include "contrib/activations.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace steep {
namespace {

constexpr const char* kTrainTheOriginal =
    "Train the file from before another runtime optimised it.";

[[noreturn]] void refuse_activation(const ContribCall& c, const char* names) {
  c.fail("An activation is not known.", names, c.text("activation").substr(0, 40),
         kTrainTheOriginal);
}

/// y = the activation `kind` of `x`.
void add_activation(ContribBody& f, const std::string& kind, const std::string& x) {
  f.add(fmt::format("y = {} ({})", kind.empty() ? "Identity" : kind, x));
}

Floats floats(const ContribCall& c, std::string_view name) {
  const Attr* attr = c.attrs.find(name);
  if (attr == nullptr) return {};
  if (const auto* values = std::get_if<Floats>(attr)) return *values;
  c.fail("An attribute has another type.", fmt::format("{}, a list of floats", name), "another",
         "Export the model again.");
}

/// y = act(Conv(x, W, B) + z), `z` may be "".
void add_conv(const ContribCall& c, ContribBody& f, const std::string& data, const std::string& z) {
  std::string attributes = fmt::format("group = {}", c.integer("group"));
  const std::string pad = c.text("auto_pad");
  if (pad != "NOTSET" && pad != "SAME_UPPER" && pad != "SAME_LOWER" && pad != "VALID") {
    c.fail("An attribute has a value that the operator does not know.",
           "auto_pad NOTSET, SAME_UPPER, SAME_LOWER or VALID", pad.substr(0, 40),
           "Export the model again.");
  }
  attributes += fmt::format(", auto_pad = \"{}\"", pad);
  for (const char* name : {"dilations", "kernel_shape", "pads", "strides"}) {
    const Ints values = c.attrs.ints(name);
    if (!values.empty()) attributes += fmt::format(", {} = [{}]", name, fmt::join(values, ", "));
  }
  f.add(fmt::format("conv = Conv <{}> ({}, W{})", attributes, data, c.has(2) ? ", B" : ""));
  if (!z.empty()) f.add(fmt::format("total = Add (conv, {})", z));
  const std::string x = z.empty() ? "conv" : "total";
  const std::string kind = c.op.name == "NhwcConv" ? "" : c.text("activation");
  const Floats p = floats(c, "activation_params");
  const bool two = kind == "Clip" || kind == "HardSigmoid";
  const size_t count = two ? 2 : kind == "LeakyRelu" ? 1 : 0;
  if (p.size() != count) {
    c.fail("An activation has too few parameters, or too many.",
           fmt::format("{} for {}", count, kind.empty() ? "none" : kind.substr(0, 40)),
           fmt::format("{}", p.size()), "Export the model again.");
  }
  if (kind == "Clip") {
    f.scalar("least", p[0], x);
    f.scalar("most", p[1], x);
    f.add(fmt::format("y = Clip ({}, least, most)", x));
  } else if (kind == "Silu") {
    f.add(fmt::format("share = Sigmoid ({0})  y = Mul ({0}, share)", x));
  } else if (kind.empty() || kind == "Relu" || kind == "Tanh" || kind == "Sigmoid" || count > 0) {
    add_activation(f, kind, x);
    if (count > 0) f.real("alpha", p[0]);
    if (count > 1) f.real("beta", p[1]);
  } else {
    refuse_activation(c, "Relu, Tanh, Sigmoid, LeakyRelu, Clip, HardSigmoid or Silu");
  }
}

Results fused_conv(const ContribCall& c, ContribBody& f) {
  add_conv(c, f, "X", c.has(3) ? "Z" : "");
  return {"y"};
}

// As Conv, with channels last in all operands except W.
Results nhwc_conv(const ContribCall& c, ContribBody& f) {
  const size_t rank = c.rank(0);
  if (rank < 3) {
    c.fail("An input has another rank.", "X of batch, an image and channels",
           to_string(c.inputs[0]), "Export the model again.");
  }
  Ints there(rank), back(rank);
  std::iota(there.begin(), there.end(), 0);
  std::rotate(there.begin() + 1, there.end() - 1, there.end());
  for (size_t i = 0; i < rank; ++i) back[static_cast<size_t>(there[i])] = static_cast<int64_t>(i);
  f.add(fmt::format("front = Transpose <perm = [{}]> (X)", fmt::join(there, ", ")));
  if (c.has(3)) f.add(fmt::format("more = Transpose <perm = [{}]> (Z)", fmt::join(there, ", ")));
  add_conv(c, f, "front", c.has(3) ? "more" : "");
  f.add(fmt::format("last = Transpose <perm = [{}]> (y)", fmt::join(back, ", ")));
  return {"last"};
}

}  // namespace

void add_named_activation(const ContribCall& c, ContribBody& f, const std::string& x) {
  constexpr std::string_view kKnown[] = {"",         "Elu",  "HardSigmoid",    "LeakyRelu",
                                         "Relu",     "Selu", "Sigmoid",        "Softplus",
                                         "Softsign", "Tanh", "ThresholdedRelu"};
  const std::string kind = c.text("activation");
  if (std::find(std::begin(kKnown), std::end(kKnown), kind) == std::end(kKnown)) {
    refuse_activation(c, "an activation of ONNX that has no other inputs");
  }
  add_activation(f, kind, x);
  for (const char* name : {"alpha", "beta", "gamma"}) {
    const std::string full = fmt::format("activation_{}", name);
    if (c.attrs.has(full)) f.real(name, c.real(full));
  }
}

namespace {

Results fused_gemm(const ContribCall& c, ContribBody& f) {
  f.add(fmt::format("gemm = Gemm <transA = {}, transB = {}> (A, B{})", (c.flag("transA") ? 1 : 0),
                    (c.flag("transB") ? 1 : 0), c.has(2) ? ", C" : ""));
  f.real("alpha", c.real("alpha"));
  f.real("beta", c.real("beta"));
  add_named_activation(c, f, "gemm");
  return {"y"};
}

}  // namespace

extern const ContribOp kContribFusedConv = {
    .name = "FusedConv",
    .inputs = {"X", "W", "B?", "Z?"},
    .attributes = {{"activation", ""}, {"auto_pad", "NOTSET"}, {"group", 1}},
    .lists = {"activation_params", "dilations", "kernel_shape", "pads", "strides"},
    .build = fused_conv};
extern const ContribOp kContribNhwcConv = {
    .name = "NhwcConv",
    .inputs = {"X", "W", "B?"},
    .attributes = {{"auto_pad", "NOTSET"}, {"group", 1}},
    .lists = {"dilations", "kernel_shape", "pads", "strides"},
    .build = nhwc_conv};
extern const ContribOp kContribNhwcFusedConv = {
    .name = "NhwcFusedConv",
    .inputs = {"X", "W", "B?", "Z?"},
    .attributes = {{"activation", ""}, {"auto_pad", "NOTSET"}, {"group", 1}},
    .lists = {"activation_params", "dilations", "kernel_shape", "pads", "strides"},
    .build = nhwc_conv};
extern const ContribOp kContribFusedGemm = {.name = "FusedGemm",
                                            .inputs = {"A", "B", "C?"},
                                            .attributes = {{"activation", ""},
                                                           {"activation_alpha", 0.0},
                                                           {"activation_beta", 0.0},
                                                           {"activation_gamma", 0.0},
                                                           {"alpha", 1.0},
                                                           {"beta", 1.0},
                                                           {"transA", 0},
                                                           {"transB", 0}},
                                            .build = fused_gemm};

}  // namespace steep
