#include "autodiff/recognise.h"

#include <array>
#include <cmath>
#include <numbers>
#include <optional>

#include "ops/build.h"

namespace steep {
namespace {

constexpr int kDepth = 6;  // of the expressions that are looked through

/// Whose operator is `op`; a null node otherwise.
Node producer(Value v, std::string_view op) {
  const Node n = v ? v.producer() : Node();
  return n && n.op() == op ? n : Node();
}

/// A constant that changes no shape beside any other value.
std::optional<double> factor(Value v) {
  const Tensor* t = constant(v);
  return t != nullptr && t->dims().empty() ? scalar_constant(v) : std::nullopt;
}

/// Models write √(2/π) and its like with seven digits and more.
bool near(double got, double want, DType dtype) {
  return std::abs(got - want) <= (dtype == DType::f64 ? 1e-11 : 1e-6) * std::abs(want);
}

/// A cubic in x, by powers, which may have a gate (1 + erf(…) or 1 + tanh(…)) as a factor.
struct Term {
  std::array<double, 4> powers{};
  bool gated = false;

  bool is(const std::array<double, 4>& wanted, DType dtype) const {
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!near(powers[i], wanted[i], dtype)) return false;
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

/// What products, sums and powers make of x and the gate; nothing where that is no Term.
std::optional<Term> term(Value v, Value x, Value gate, int depth = kDepth) {
  if (v == x) return Term{{0, 1, 0, 0}};
  if (v == gate) return Term{{1, 0, 0, 0}, true};
  if (const auto c = factor(v)) return Term{{*c, 0, 0, 0}};
  const Node n = v.producer();
  if (!n || depth == 0) return {};
  const auto operand = [&](int i) { return term(n.input(i), x, gate, depth - 1); };
  if (n.op() == "Pow") {
    const auto exponent = factor(n.input(1));
    if (exponent != 2.0 && exponent != 3.0) return {};
    const auto base = operand(0);
    const auto square = base ? product(*base, *base) : base;
    return square && exponent == 3.0 ? product(*square, *base) : square;
  }
  if (n.op() == "Div") {
    const auto divisor = factor(n.input(1));
    const auto dividend = divisor && *divisor != 0 ? operand(0) : std::nullopt;
    return dividend ? product(*dividend, Term{{1 / *divisor, 0, 0, 0}}) : dividend;
  }
  if (n.op() != "Mul" && n.op() != "Add") return {};
  const auto a = operand(0), b = a ? operand(1) : a;
  if (!b) return {};
  return n.op() == "Mul" ? product(*a, *b) : sum(*a, *b);
}

/// The factors of a product that may be a GELU: a gate, and what else is met on the way to it, of
/// which one is x.
struct Factors {
  Value gate;
  Node curve;  ///< Erf or Tanh
  std::vector<Value> others;
};

Node curve_of_gate(Value v) {
  const Node n = producer(v, "Add");
  for (int i : {0, 1}) {
    if (!n || factor(n.input(1 - i)) != 1.0) continue;
    if (const Node erf = producer(n.input(i), "Erf")) return erf;
    if (const Node tanh = producer(n.input(i), "Tanh")) return tanh;
  }
  return {};
}

void find_factors(Value v, int depth, Factors* found) {
  if (constant(v) != nullptr) return;
  if (const Node curve = curve_of_gate(v)) {
    found->gate = v;
    found->curve = curve;
    return;
  }
  found->others.push_back(v);
  const Node n = v.producer();
  if (!n || depth == 0 || (n.op() != "Mul" && n.op() != "Div")) return;
  find_factors(n.input(0), depth - 1, found);
  if (n.op() == "Mul") find_factors(n.input(1), depth - 1, found);
}

/// Hendrycks & Gimpel 2016: x Φ(x) = x (1 + erf(x / √2)) / 2, or nearly
/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2.
Value gelu(Node last) {
  const Value y = last.output(0);
  if ((last.op() != "Mul" && last.op() != "Div") || !is_float(y.dtype())) return {};
  Factors f;
  find_factors(y, 2, &f);
  if (!f.gate) return {};
  const bool exact = f.curve.op() == "Erf";
  const double c = exact ? std::numbers::sqrt2 / 2 : std::sqrt(2 / std::numbers::pi);
  for (Value x : f.others) {
    const auto outer = term(y, x, f.gate);
    if (!outer || !outer->gated || !outer->is({0, 0.5, 0, 0}, y.dtype())) continue;
    const auto inner = term(f.curve.input(0), x, Value());
    if (!inner || !inner->is({0, c, 0, exact ? 0 : 0.044715 * c}, y.dtype())) continue;
    return apply("Gelu", {x}, {{"approximate", std::string(exact ? "none" : "tanh")}});
  }
  return {};
}

/// x of mean(x) over the last axis, which is kept; null otherwise.
Value averaged(Value mean) {
  const Node n = producer(mean, "ReduceMean");
  const Tensor* axes = n ? constant(n.input(1)) : nullptr;
  if (axes == nullptr || axes->size() != 1 || integer_of(n, "keepdims") == 0) return {};
  const Value x = n.input(0);
  if (!x.type().shape || x.rank() == 0) return {};
  const int64_t axis = axes->to_ints()[0];
  return axis == -1 || axis == x.rank() - 1 ? x : Value();
}

/// x of x - mean(x); null otherwise.
Value centred(Value difference) {
  const Node n = producer(difference, "Sub");
  const Value x = n ? averaged(n.input(1)) : Value();
  return x && x == n.input(0) ? x : Value();
}

/// x of mean((x - mean(x))²); null otherwise.
Value of_variance(Value v) {
  const Value square = averaged(v);
  if (!square) return {};
  if (const Node n = producer(square, "Pow")) {
    return factor(n.input(1)) == 2.0 ? centred(n.input(0)) : Value();
  }
  const Node n = producer(square, "Mul");
  return n && n.input(0) == n.input(1) ? centred(n.input(0)) : Value();
}

/// As long as the last axis of x.
bool is_row_of(Value row, Value x) {
  const auto &a = row.type().shape, &b = x.type().shape;
  return a && b && a->size() == 1 && row.dtype() == x.dtype() &&
         provably_equal(a->back(), b->back());
}

/// Ba et al. 2016: (x - mean(x)) / √(variance(x) + ε) · scale + bias.
Value layer_normalization(Node add) {
  if (add.op() != "Add" || add.output(0).dtype() != DType::f32) return {};
  for (int i : {0, 1}) {
    const Value bias = add.input(1 - i);
    const Node mul = producer(add.input(i), "Mul");
    for (int j : {0, 1}) {
      const Node div = mul ? producer(mul.input(j), "Div") : Node();
      const Node root = div ? producer(div.input(1), "Sqrt") : Node();
      const Node sum = root ? producer(root.input(0), "Add") : Node();
      const Value x = sum ? centred(div.input(0)) : Value();
      const auto epsilon = x ? factor(sum.input(1)) : std::nullopt;
      if (!epsilon || of_variance(sum.input(0)) != x) continue;
      const Value scale = mul.input(1 - j);
      if (!is_row_of(scale, x) || !is_row_of(bias, x)) continue;
      const Attrs attrs = {{"axis", int64_t{-1}}, {"epsilon", *epsilon}};
      return apply_n("LayerNormalization", std::vector{x, scale, bias}, 3, attrs)[0];
    }
  }
  return {};
}

}  // namespace

void recognise(Graph& g) {
  for (Node n : g.nodes()) {
    const Graph::Scope scope(g, n.phase(), n.name());
    for (auto* find : {gelu, layer_normalization}) {
      const Value whole = find(n);
      if (!whole) continue;
      g.place_like(whole.producer(), n);
      g.replace_uses(n.output(0), whole);
      break;
    }
  }
  g.prune();
}

}  // namespace steep
