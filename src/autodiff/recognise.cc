#include "autodiff/recognise.h"

#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "autodiff/recognise_scan.h"
#include "ops/build.h"

namespace steep {
namespace {

constexpr int kDepth = 6;  // depth of the expressions searched

/// The value of a scalar constant, which never changes the shape of the result.
std::optional<double> factor(Value v) {
  const Tensor* t = constant(v);
  return t != nullptr && t->dims().empty() ? scalar_constant(v) : std::nullopt;
}

/// Models write constants such as √(2/π) with seven digits or more.
bool near(double value, double want, DType dtype) {
  return std::abs(value - want) <= (dtype == DType::f64 ? 1e-11 : 1e-6) * std::abs(want);
}

/// The coefficients of a cubic in x, which may be multiplied with a gate (1 + erf(…) or 1 +
/// tanh(…)).
struct Term {
  std::array<double, 4> powers{};
  bool gated = false;

  bool is(const std::array<double, 4>& target, DType dtype) const {
    for (size_t i = 0; i < target.size(); ++i) {
      if (!near(powers[i], target[i], dtype)) return false;
    }
    return true;
  }
};

std::optional<Term> product(const Term& a, const Term& b) {
  if (a.gated && b.gated) return {};
  Term y{.gated = a.gated || b.gated};
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 4; ++j) {
      const double c = a.powers[i] * b.powers[j];
      if (c != 0 && i + j > 3) return {};
      if (c != 0) y.powers[i + j] += c;
    }
  }
  return y;
}

std::optional<Term> sum(const Term& a, const Term& b) {
  if (a.gated != b.gated) return {};
  Term y = a;
  for (size_t i = 0; i < 4; ++i) y.powers[i] += b.powers[i];
  return y;
}

std::optional<Term> term(Value v, Value x, Value gate, int depth = kDepth);

/// The search for the Term of an expression.
struct Expression {
  Value x, gate;
  int depth;  ///< remaining depth
  Term result{};

  std::optional<Term> of(Value v) const { return term(v, x, gate, depth - 1); }

  bool take(const std::optional<Term>& t) {
    if (t) result = *t;
    return t.has_value();
  }
};

bool take_power(const Match& m, Expression& e) {
  const auto exponent = factor(m["exponent"]);
  if (exponent != 2.0 && exponent != 3.0) return false;
  const auto base = e.of(m["base"]);
  const auto square = base ? product(*base, *base) : base;
  return e.take(square && exponent == 3.0 ? product(*square, *base) : square);
}

bool take_quotient(const Match& m, Expression& e) {
  const auto divisor = factor(m["b"]);
  const auto dividend = divisor && *divisor != 0 ? e.of(m["a"]) : std::nullopt;
  return e.take(dividend ? product(*dividend, Term{{1 / *divisor, 0, 0, 0}}) : dividend);
}

template <std::optional<Term> (*kCombine)(const Term&, const Term&)>
bool take_both(const Match& m, Expression& e) {
  const auto a = e.of(m["a"]), b = a ? e.of(m["b"]) : a;
  return b && e.take(kCombine(*a, *b));
}

/// Cubics are written in many ways, so they are multiplied out.
constexpr PatternRule<Expression&> kTerms[] = {
    {.name = "recognise/power",
     .reason = "Exporters write a cube as a power.",
     .pattern = "Pow(base, exponent)",
     .then = take_power},
    {.name = "recognise/quotient",
     .reason = "A division by a constant is a factor.",
     .pattern = "Div(a, b)",
     .then = take_quotient},
    {.name = "recognise/product",
     .reason = "Factors come in any order and nesting.",
     .pattern = "Mul(a, b)",
     .then = take_both<product>},
    {.name = "recognise/sum",
     .reason = "Summands come in any order and nesting.",
     .pattern = "Add(a, b)",
     .then = take_both<sum>},
};

/// The Term of an expression of x and the gate by products, sums and powers; nothing for any other.
std::optional<Term> term(Value v, Value x, Value gate, int depth) {
  if (v == x) return Term{{0, 1, 0, 0}};
  if (v == gate) return Term{{1, 0, 0, 0}, true};
  if (const auto c = factor(v)) return Term{{*c, 0, 0, 0}};
  if (depth == 0) return {};
  Expression e{.x = x, .gate = gate, .depth = depth};
  return apply_rules(kTerms, v.producer(), Match(), e) ? std::optional(e.result) : std::nullopt;
}

/// The factors of a product that may be a GELU: a gate, and the other factors found on the way to
/// it, one of which is x.
struct Factors {
  Value gate, inner{};  ///< inner: the operand of Erf or Tanh
  bool exact = false;   ///< the gate uses Erf, not Tanh
  std::vector<Value> others{};
};

template <bool kExact>
bool take_gate(const Match& m, Factors& factors) {
  if (factor(m["one"]) != 1.0) return false;
  factors.gate = m["gate"];
  factors.inner = m["inner"];
  factors.exact = kExact;
  return true;
}

constexpr PatternRule<Factors&> kGates[] = {
    {.name = "recognise/exact_gate",
     .reason = "GELU is x Φ(x), and Φ is (1 + erf) / 2 of x / √2.",
     .pattern = "gate: Add{Erf(inner), one}",
     .then = take_gate<true>},
    {.name = "recognise/tanh_gate",
     .reason = "Older models approximate Φ by tanh of a cubic.",
     .pattern = "gate: Add{Tanh(inner), one}",
     .then = take_gate<false>},
};

void find_factors(Value v, int depth, Factors& factors);

/// The rows that find the factors of a product.
constexpr PatternRule<Factors&, int> kFactors[] = {
    {.name = "recognise/factors",
     .reason = "The gate, x and ½ are multiplied in any order.",
     .pattern = "Mul(a, b)",
     .then =
         [](const Match& m, Factors& factors, int depth) {
           find_factors(m["a"], depth, factors);
           find_factors(m["b"], depth, factors);
           return true;
         }},
    {.name = "recognise/divided_factors",
     .reason = "A division by 2 stands for ½.",
     .pattern = "Div(a, _)",
     .then =
         [](const Match& m, Factors& factors, int depth) {
           find_factors(m["a"], depth, factors);
           return true;
         }},
};

void find_factors(Value v, int depth, Factors& factors) {
  if (constant(v) != nullptr || apply_rules(kGates, v.producer(), Match(), factors)) return;
  factors.others.push_back(v);
  if (depth > 0) apply_rules(kFactors, v.producer(), Match(), factors, depth - 1);
}

/// Hendrycks & Gimpel 2016: x Φ(x) = x (1 + erf(x / √2)) / 2, or nearly
/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2.
bool make_gelu(const Match& m, Value& result) {
  const Value y = m["y"];
  if (!is_float(y.dtype())) return false;
  Factors f;
  find_factors(y, 2, f);
  if (!f.gate) return false;
  const double c = f.exact ? std::numbers::sqrt2 / 2 : std::sqrt(2 / std::numbers::pi);
  for (Value x : f.others) {
    const auto outer = term(y, x, f.gate);
    if (!outer || !outer->gated || !outer->is({0, 0.5, 0, 0}, y.dtype())) continue;
    const auto inner = term(f.inner, x, Value());
    if (!inner || !inner->is({0, c, 0, f.exact ? 0 : 0.044715 * c}, y.dtype())) continue;
    result = apply("Gelu", {x}, {{"approximate", std::string(f.exact ? "none" : "tanh")}});
    return true;
  }
  return false;
}

/// Whether the mean is over the last axis, with keepdims.
bool averages_last_axis(Node mean) {
  const Tensor* axes = constant(mean.input(1));
  if (axes == nullptr || axes->size() != 1 || integer_of(mean, "keepdims") == 0) return false;
  const Value x = mean.input(0);
  if (!x.type().shape || x.rank() == 0) return false;
  const int64_t axis = axes->to_ints()[0];
  return axis == -1 || axis == x.rank() - 1;
}

/// Whether `row` is a vector with the extent of x's last axis.
bool is_row_of(Value row, Value x) {
  const auto &a = row.type().shape, &b = x.type().shape;
  return a && b && a->size() == 1 && row.dtype() == x.dtype() &&
         provably_equal(a->back(), b->back());
}

/// Ba et al. 2016: (x - mean(x)) / √(variance(x) + ε) · scale + bias.
bool make_layer_normalization(const Match& m, Value& result) {
  const Value x = m["x"], scale = m["scale"], bias = m["bias"];
  const auto epsilon = factor(m["epsilon"]);
  if (m["y"].dtype() != DType::f32 || !epsilon || !is_row_of(scale, x) || !is_row_of(bias, x))
    return false;
  for (const char* mean : {"mean", "mean_again", "variance"}) {
    if (!averages_last_axis(m.node(mean))) return false;
  }
  const Attrs attrs = {{"axis", int64_t{-1}}, {"epsilon", *epsilon}};
  result = apply_n("LayerNormalization", std::vector{x, scale, bias}, 3, attrs)[0];
  return true;
}

/// 1 / (1 + e^power) = sigmoid(-power). Where the power overflows, the gradient of the parts is
/// 0 · infinity.
bool make_sigmoid(const Match& m, Value& result) {
  static constexpr Pattern kNegative("Neg(x)"), kTimes("Mul(a, b)");
  const Value power = m["power"];
  const Type &from = power.type(), &to = m.node("y").output(0).type();
  if (!from.shape || !to.shape || from.shape->size() != to.shape->size()) return false;
  Value x = -power;
  if (const auto negative = match(kNegative, power)) {
    x = (*negative)["x"];
  } else if (const auto times = match(kTimes, power)) {
    if (factor((*times)["a"]) == -1.0) x = (*times)["b"];
    if (factor((*times)["b"]) == -1.0) x = (*times)["a"];
  }
  result = apply("Sigmoid", {x});
  return true;
}

/// x · wᵀ for each group of rows, from a product with a transposed copy of w.
bool read_transposed(const Match& m, Value& result) {
  if (m.node("copy").attrs().ints("perm") != Ints{0, 2, 1}) return false;
  Attrs attrs = m.node("y").attrs();
  attrs.set("transposed", int64_t{integer_of(m.node("y"), "transposed") == 0});
  result = apply("steep.GroupedMatMul", {m["x"], m["w"], m["offsets"]}, attrs);
  return true;
}

/// The pads of a Pad with zeros as those of a convolution: what is added before each spatial axis,
/// then behind. Nothing if it pads otherwise.
std::optional<Ints> spatial_pads(Node pad) {
  const Tensor *pads = constant(pad.input(1)), *axes = constant(pad.input(3));
  if (pads == nullptr || text_of(pad, "mode") != "constant" || !pad.input(0).type().shape)
    return {};
  if (pad.input(2) && scalar_constant(pad.input(2)) != 0.0) return {};
  if (pad.input(3) && axes == nullptr) return {};
  const int64_t rank = pad.input(0).rank();
  const Ints by = pads->to_ints();
  const auto count = static_cast<int64_t>(by.size() / 2);
  Ints result(static_cast<size_t>(2 * (rank - 2)));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis =
        axes != nullptr ? normal_axis(pad, axes->to_ints()[static_cast<size_t>(i)], rank) : i;
    const int64_t before = by[static_cast<size_t>(i)], after = by[static_cast<size_t>(count + i)];
    if (before < 0 || after < 0 || (axis < 2 && before + after > 0)) return {};
    if (axis < 2) continue;
    result[static_cast<size_t>(axis - 2)] = before;
    result[static_cast<size_t>(axis - 2 + rank - 2)] = after;
  }
  return result;
}

/// A convolution that adds the zeros itself.
bool pad_in_convolution(const Match& m, Value& result) {
  const Node conv = m.node("y"), pad = m.node("padded");
  const Value x = pad.input(0), w = conv.input(1);
  if (!x.type().shape || x.rank() < 3 || !w.type().shape || text_of(conv, "auto_pad") != "NOTSET")
    return false;
  const std::optional<Ints> more = spatial_pads(pad);
  if (!more) return false;
  Attrs attrs = conv.attrs();
  Ints pads = attrs.ints("pads"), dilations = attrs.ints("dilations");
  pads.resize(more->size());
  dilations.resize(more->size() / 2, 1);
  for (size_t i = 0; i < pads.size(); ++i) {
    pads[i] += (*more)[i];
    const size_t axis = i % dilations.size();
    const Dim& extent = (*w.type().shape)[axis + 2];
    // A filter that only sees zeros is a case of its own, for which kernels are slow.
    if (!extent.known() || pads[i] > (extent.value() - 1) * dilations[axis]) return false;
  }
  attrs.set("pads", pads);
  result = apply("Conv", {x, w, conv.input(2)}, attrs);
  return true;
}

constexpr PatternRule<Value&> kRules[] = {
    {.name = "recognise/gelu",
     .reason = "Gelu has a kernel, and a gradient that reads x alone.",
     .pattern = "y: Mul|Div(_, _)",
     .then = make_gelu},
    {.name = "recognise/layer_normalization_by_power",
     .reason = "LayerNormalization has a kernel, and a gradient in few passes over x.",
     .pattern = "y: Add{Mul{Div(Sub(x, mean: ReduceMean(x, _)), Sqrt(Add(variance: ReduceMean("
                "Pow(Sub(x, mean_again: ReduceMean(x, _)), two), _), epsilon))), scale}, bias}",
     .then =
         [](const Match& m, Value& result) {
           return factor(m["two"]) == 2.0 && make_layer_normalization(m, result);
         }},
    {.name = "recognise/layer_normalization_by_product",
     .reason = "A layer normalization may write the square as a product.",
     .pattern = "y: Add{Mul{Div(Sub(x, mean: ReduceMean(x, _)), Sqrt(Add(variance: ReduceMean("
                "Mul(d, d: Sub(x, mean_again: ReduceMean(x, _))), _), epsilon))), scale}, bias}",
     .then = make_layer_normalization},
    {.name = "recognise/sigmoid",
     .reason = "Exporters write a sigmoid in parts; its own gradient is finite everywhere.",
     .pattern = "y: Reciprocal(Add{Exp(power), 1.0})",
     .then = make_sigmoid},
    {.name = "recognise/sigmoid_by_quotient",
     .reason = "The reciprocal may be a quotient.",
     .pattern = "y: Div(1.0, Add{Exp(power), 1.0})",
     .then = make_sigmoid},
    {.name = "recognise/padded_convolution",
     .reason = "Convolutions pad without a copy of their input.",
     .pattern = "y: Conv(padded: Pad(_, ...), ...)",
     .then = pad_in_convolution},
    {.name = "recognise/scan",
     .reason = "A linear recurrence is one pass, where a scan has log2(n) levels of copies.",
     .pattern = "y: Reshape(both: Concat(evens: Unsqueeze(even, _), odds: Unsqueeze(odd, _)), _)",
     .then = recognise_scan},
    {.name = "recognise/scan_of_odd_length",
     .reason = "A level of an odd number of elements is padded and cut.",
     .pattern = "y: Slice(whole: Reshape(both: Concat(evens: Unsqueeze(even, _), odds: Unsqueeze("
                "padded: Pad(odd, ...), _)), _), ...)",
     .then = recognise_odd_scan},
    {.name = "recognise/grouped_product_of_transposed",
     .reason =
         "A grouped product reads its matrices in either order, without a copy of all of them.",
     .pattern = "y: steep.GroupedMatMul(x, copy: Transpose(w), offsets)",
     .then = read_transposed},
};

}  // namespace

void recognise(Graph& g) {
  for (Node n : g.nodes()) {
    const Graph::Scope scope(g, n.phase(), n.name());
    Value whole;
    if (!apply_rules(kRules, n, Match(), whole)) continue;
    g.place_like(whole.producer(), n);
    g.replace_uses(n.output(0), whole);
  }
  g.prune();
}

std::vector<PatternRuleInfo> recognise_patterns() {
  return list_rules(kRules, kTerms, kGates, kFactors);
}

}  // namespace steep
