#include <algorithm>
#include <cctype>
#include <map>

#include "providers/cpu/recurrent.h"

namespace steep::cpu {
namespace {

struct Known {
  Activation::Kind kind;
  bool alpha, beta;  ///< whether it has these parameters
  double default_alpha = 0, default_beta = 0;
};

const Known* find_activation(std::string name) {
  using Kind = Activation::Kind;
  static const std::map<std::string, Known> table = {
      {"affine", {Kind::affine, true, true, 1, 0}},
      {"elu", {Kind::elu, true, false, 1}},
      {"hardsigmoid", {Kind::hard_sigmoid, true, true, 0.2, 0.5}},
      {"leakyrelu", {Kind::leaky_relu, true, false, 0.01}},
      {"relu", {Kind::relu, false, false}},
      {"scaledtanh", {Kind::scaled_tanh, true, true, 1, 1}},
      {"sigmoid", {Kind::sigmoid, false, false}},
      {"softplus", {Kind::softplus, false, false}},
      {"softsign", {Kind::softsign, false, false}},
      {"tanh", {Kind::tanh, false, false}},
      {"thresholdedrelu", {Kind::thresholded_relu, true, false, 1}},
  };
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto it = table.find(name);
  return it == table.end() ? nullptr : &it->second;
}

Floats reals(const Attrs& attrs, std::string_view name) {
  const Attr* a = attrs.find(name);
  const auto* values = a == nullptr ? nullptr : std::get_if<Floats>(a);
  return values == nullptr ? Floats() : *values;
}

/// Each function takes its parameters, if it has any, from the two lists, in order.
bool read_functions(const Attrs& attrs, RecurrentProblem* p, std::string* why_not) {
  Strings names;
  if (const Attr* a = attrs.find("activations")) names = std::get<Strings>(*a);
  const size_t each = p->cell == Cell::lstm ? 3 : p->cell == Cell::gru ? 2 : 1;
  const auto directions = static_cast<size_t>(p->directions);
  if (names.empty()) {
    for (size_t d = 0; d < directions; ++d) {
      if (p->cell != Cell::rnn) names.emplace_back("Sigmoid");
      names.insert(names.end(), p->cell == Cell::lstm ? 2 : 1, "Tanh");
    }
  }
  if (names.size() != each * directions) {
    *why_not = "the number of activations does not fit";
    return false;
  }
  const Floats alphas = reals(attrs, "activation_alpha"), betas = reals(attrs, "activation_beta");
  const double attribute = attrs.real("clip");
  const double clip = attribute > 0 ? attribute : std::numeric_limits<double>::infinity();
  size_t next_alpha = 0, next_beta = 0;
  p->functions.resize(directions);
  for (size_t i = 0; i < names.size(); ++i) {
    const Known* activation = find_activation(names[i]);
    if (activation == nullptr) {
      *why_not = "the activation " + names[i] + " is not known";
      return false;
    }
    auto take = [](bool has, const Floats& list, size_t* next, double otherwise) {
      return has && *next < list.size() ? list[(*next)++] : otherwise;
    };
    const double alpha = take(activation->alpha, alphas, &next_alpha, activation->default_alpha);
    const double beta = take(activation->beta, betas, &next_beta, activation->default_beta);
    p->functions[i / each][i % each] = {activation->kind, alpha, beta, clip};
  }
  return true;
}

}  // namespace

std::optional<RecurrentProblem> read_recurrent(const NodeSpec& node, std::string* why_not) {
  const Attrs& attrs = node.attrs;
  const bool backward = node.op == "steep.RecurrentGrad";
  const bool named = backward || node.op == "steep.RecurrentWithTrace";
  const std::string name = named ? attrs.string("cell") : std::string(node.op);
  const Cell cell = name == "LSTM" ? Cell::lstm : name == "GRU" ? Cell::gru : Cell::rnn;
  const size_t x = backward ? 3 : 0;  // after the gradients of y, y_h and y_c
  RecurrentProblem p{};
  p.cell = cell;
  p.at = {x, x + 1, x + 2, x + 3, x + 4, x + 5, x + 6, x + 7, x + 8};
  const Operand &in = node.in(p.at.x), &w = node.in(p.at.w), &r = node.in(p.at.r);
  p.dtype = in.dtype;
  const std::string direction = attrs.string("direction");
  p.first_reversed = direction == "reverse";
  p.directions = direction == "bidirectional" ? 2 : 1;
  p.batch_major = attrs.integer("layout") != 0;
  p.linear_before_reset = attrs.integer("linear_before_reset") != 0;
  p.input_forget = attrs.integer("input_forget") != 0;
  p.gates = cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1;
  if (in.rank() != 3 || w.rank() != 3 || r.rank() != 3) {
    decline(why_not, "X, W and R have to have three dimensions");
    return {};
  }
  p.steps = in.dims[p.batch_major ? 1 : 0];
  p.batch = in.dims[p.batch_major ? 0 : 1];
  p.input = in.dims[2];
  p.hidden = r.dims[2];
  auto present = [&](size_t i, bool known) { return known && node.in(i).present(); };
  p.has_b = present(p.at.b, true);
  p.has_lens = present(p.at.lens, true);
  p.has_h0 = present(p.at.h0, true);
  p.has_c0 = present(p.at.c0, cell == Cell::lstm);
  p.has_p = present(p.at.p, cell == Cell::lstm);
  const int64_t state = p.directions * p.batch * p.hidden;
  const bool fits = w.dims == Dims{p.directions, p.width(), p.input} &&
                    r.dims == Dims{p.directions, p.width(), p.hidden} &&
                    attrs.integer("hidden_size", p.hidden) == p.hidden &&  // of the results
                    (!p.has_b || node.in(p.at.b).size() == p.directions * 2 * p.width()) &&
                    (!p.has_lens || node.in(p.at.lens).size() == p.batch) &&
                    (!p.has_h0 || node.in(p.at.h0).size() == state) &&
                    (!p.has_c0 || node.in(p.at.c0).size() == state) &&
                    (!p.has_p || node.in(p.at.p).size() == p.directions * 3 * p.hidden);
  if (!fits) {
    decline(why_not, "the shapes of the inputs do not fit together");
    return {};
  }
  if (p.has_lens && node.in(p.at.lens).dtype != DType::i32) {
    decline(why_not, "sequence_lens is not int32");
    return {};
  }
  if (!read_functions(attrs, &p, why_not)) return {};
  return p;
}

void check_lens(const RecurrentProblem& p, const NodeId& id, const KernelArgs& args) {
  for (int64_t n = 0; p.has_lens && n < p.batch; ++n) {
    const int64_t steps = length(p, args, n);
    if (steps < 0 || steps > p.steps) {
      id.data_error("The length of a sequence is out of range.", fmt::format("0 to {}", p.steps),
                    std::to_string(steps));
    }
  }
}

}  // namespace steep::cpu
