// Folds the surroundings of a matrix product into it: transposes of its operands and of its result
// become strides, a constant factor becomes alpha, a vector that is added to each row becomes the
// bias, and ReLU becomes the epilogue.
//
//   Relu(MatMul(Transpose(x), w * 0.5) + b)  →  steep.MatMul(x, w, b) {perm_a, alpha=0.5,
//   activation="Relu"}

#include <algorithm>
#include <optional>
#include <utility>

#include "ops/build.h"
#include "passes/factor.h"
#include "passes/pipeline.h"

namespace steep {
namespace {

std::optional<double> scalar_of(Value v) {
  if (!v || !is_float(v.dtype()) || v.rank() > 1) return {};
  return scalar_constant(v);
}

Ints identity_perm(int64_t rank) {
  Ints perm;
  for (int64_t i = 0; i < rank; ++i) perm.push_back(i);
  return perm;
}

Ints compose(const Ints& first, const Ints& then) {
  Ints out;
  for (int64_t i : then) out.push_back(first[static_cast<size_t>(i)]);
  return out;
}

/// Without a unit stride in one of the two matrix axes a kernel would have to copy, as Transpose
/// does.
bool keeps_unit_stride(const Ints& perm) {
  const auto last = static_cast<int64_t>(perm.size()) - 1;
  return perm[perm.size() - 1] == last || perm[perm.size() - 2] == last;
}

/// An operand of the product: the value before the nodes that the product absorbs.
struct Operand {
  Value value;
  Ints perm;
};

/// The result of the product, after the nodes that the product absorbs.
struct Result {
  Value product, last;
  Phase phase;
  double alpha;
  Value bias{};
  bool relu = false;
  Ints perm{};  ///< of an absorbed transpose; then no later node is absorbed
};

bool take_transpose(const Match& m, Operand& operand, Phase, double&) {
  Ints perm = m.node("transpose").attrs().ints("perm");
  if (perm.empty()) {
    perm = identity_perm(operand.value.rank());
    std::reverse(perm.begin(), perm.end());
  }
  const Ints combined = compose(perm, operand.perm);
  if (!keeps_unit_stride(combined)) return false;
  operand = {m["x"], combined};
  return true;
}

template <bool kDivides>
bool take_factor(const Match& m, Operand& operand, Phase phase, double& alpha) {
  const auto c = scalar_of(m["factor"]);
  // A node of another phase stays: forward computes it anyway, for backward.
  if (m.node("y").phase() != phase || !c || m["x"].rank() != operand.value.rank()) return false;
  const double scaled = kDivides ? alpha / *c : alpha * *c;
  if (!may_scale_product(scaled)) return false;
  alpha = scaled;
  operand.value = m["x"];
  return true;
}

constexpr PatternRule<Operand&, Phase, double&> kOperandRules[] = {
    {.name = "fuse_matmul/transposed_operand",
     .reason = "Kernels read by strides, so that no transposed copy is made.",
     .pattern = "transpose: Transpose(x)",
     .then = take_transpose},
    {.name = "fuse_matmul/multiplied_operand",
     .reason = "A constant factor of an operand is one of the product.",
     .pattern = "y: Mul(x, factor)",
     .then = take_factor<false>},
    {.name = "fuse_matmul/divided_operand",
     .reason = "A constant divisor of an operand is one of the product.",
     .pattern = "y: Div(x, factor)",
     .then = take_factor<true>},
};

template <bool kDivides>
bool take_scale(const Match& m, Result& r) {
  const auto c = scalar_of(m["factor"]);
  if (r.bias || r.relu || !c || m["y"].rank() != r.last.rank()) return false;
  const double scaled = kDivides ? r.alpha / *c : r.alpha * *c;
  if (!may_scale_product(scaled)) return false;
  r.alpha = scaled;
  return true;
}

bool take_bias(const Match& m, Result& r) {
  const Value bias = m["bias"];
  if (r.bias || r.relu || bias == r.last || bias.rank() != 1 || r.last.rank() < 1) return false;
  if (!provably_equal(bias.shape()[0], r.last.shape().back()) || bias.dtype() != r.last.dtype())
    return false;
  r.bias = bias;
  return true;
}

/// Requires that the result's last axis is one of the product's last two.
bool take_result_transpose(const Match& m, Result& r) {
  const Ints perm = m.node("transpose").attrs().ints("perm");
  const int64_t rank = r.product.rank();
  if (rank < 2 || perm.empty() || perm.back() < rank - 2) return false;
  r.perm = perm;
  return true;
}

/// Patterns of readers of the last absorbed value.
constexpr PatternRule<Result&> kResultRules[] = {
    {.name = "fuse_matmul/multiplied_result",
     .reason = "The product's alpha costs nothing.",
     .pattern = "y: Mul(last, factor)",
     .then = take_scale<false>},
    {.name = "fuse_matmul/divided_result",
     .reason = "A constant divisor of the result is a factor of alpha.",
     .pattern = "y: Div(last, factor)",
     .then = take_scale<true>},
    {.name = "fuse_matmul/bias",
     .reason = "A vector is added to each row while the row is in a register.",
     .pattern = "Add{last, bias}",
     .then = take_bias},
    {.name = "fuse_matmul/relu",
     .reason = "ReLU is applied to a row while the row is in a register.",
     .pattern = "Relu(last)",
     .then = [](const Match&, Result& r) { return !std::exchange(r.relu, true); }},
    {.name = "fuse_matmul/transposed_result",
     .reason = "Kernels write by strides, so that no transposed copy is made.",
     .pattern = "transpose: Transpose(last)",
     .then = take_result_transpose},
};

/// Absorbs transposes and constant factors, from the operand upwards.
Operand absorb_operand(Value v, Phase phase, double& alpha) {
  Operand operand{v, identity_perm(v.rank())};
  while (apply_rules(kOperandRules, operand.value.producer(), Match(), operand, phase, alpha)) {
  }
  return operand;
}

/// Absorbs readers, downwards, as long as there is a single one of the same phase.
void absorb_readers(const Readers& readers, Result& r) {
  while (r.perm.empty()) {
    const Node reader = readers.only(r.last);
    if (!reader || reader.phase() != r.phase) return;
    if (!apply_rules(kResultRules, reader, Match().with("last", r.last), r)) return;
    r.last = reader.output(0);
  }
}

/// Returns whether anything was absorbed.
bool fuse(Node n, const Readers& readers) {
  const Value y = n.output(0), left = n.input(0), right = n.input(1);
  if (!is_float(y.dtype()) || left.rank() < 2 || right.rank() < 2) return false;
  Result r{.product = y, .last = y, .phase = n.phase(), .alpha = 1};
  const Operand a = absorb_operand(left, r.phase, r.alpha);
  const Operand b = absorb_operand(right, r.phase, r.alpha);
  absorb_readers(readers, r);
  if (a.value == left && b.value == right && r.last == y) return false;

  const Ints perm_y = r.perm.empty() ? identity_perm(y.rank()) : r.perm;
  Attrs attrs{{"perm_a", a.perm}, {"perm_b", b.perm}, {"perm_y", perm_y}};
  if (r.alpha != 1) attrs.set("alpha", r.alpha);
  if (r.relu) attrs.set("activation", std::string("Relu"));
  Graph& g = n.graph();
  const Graph::Scope scope(g, r.phase, n.name());
  std::vector<Value> inputs{a.value, b.value};
  if (r.bias) inputs.push_back(r.bias);
  const Value product = apply("steep.MatMul", inputs, std::move(attrs));
  g.place_like(product.producer(), n);
  g.replace_uses(r.last, product);
  return true;
}

constexpr PatternRule<const Readers&> kRules[] = {
    {.name = "fuse_matmul/product",
     .reason = "Each node around a product would be a pass through memory.",
     .pattern = "product: MatMul(_, _)",
     .then = [](const Match& m, const Readers& readers) {
       return fuse(m.node("product"), readers);
     }}};

}  // namespace

void fuse_matmul(Graph& g) {
  const Readers readers(g);
  for (Node n : g.nodes()) apply_rules(kRules, n, Match(), readers);
}

std::vector<PatternRuleInfo> fuse_matmul_patterns() {
  return list_rules(kRules, kOperandRules, kResultRules);
}

}  // namespace steep
