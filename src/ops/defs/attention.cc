// steep.Attention(q, k, v, bias?, keep?, seed?){scale, masked, causal, zero_nan, zero_shut, ratio,
// stream, perm_q, perm_k, perm_v, perm_y} → y, max[B, H, Sq], sum[B, H, Sq].
//
// perm_x transposes an operand to heads: q[B, H, Sq, D], k[B, H, Sk, D], v[B, H, Sk, Dv]; perm_y
// transposes [B, H, Sq, Dv] to y. With s = scale q kᵀ, `masked` where keep is false and -inf above
// the diagonal if causal, plus bias (keep and bias broadcast to [B, H, Sq, Sk]):
//   max = the greatest s of each row, sum = Σ exp(s - max), p = exp(s - max) / sum,
//   y = dropout(p) v.
// Dropout is that of steep.Dropout on p. zero_shut: a row of p whose s are all -inf counts as 0,
// and its max and sum as +inf; zero_nan: the same for rows with NaN. Made by a fusion pass; a
// kernel never stores the score matrix (Dao et al. 2022, FlashAttention; Dao 2023,
// FlashAttention-2).
#include "ops/defs/attention.h"

#include <limits>

#include "ops/build.h"
#include "ops/steep_types.h"

namespace steep {

Value attention_permuted(Node n, Value x, std::string_view perm) {
  const Ints p = n.attrs().ints(perm);
  return p.empty() ? x : transpose(x, p);
}

Shape attention_permuted(Node n, const Shape& shape, std::string_view perm) {
  const Ints p = n.attrs().ints(perm);
  if (p.empty()) return shape;
  Shape out;
  for (int64_t axis : p) out.push_back(shape.at(static_cast<size_t>(axis)));
  return out;
}

std::optional<Shape> attention_shape(Node n, int i, std::string_view perm) {
  require_rank(n, i, 4);
  const Ints p = n.attrs().ints(perm);
  std::vector<bool> named(4, false);
  for (int64_t axis : p) {
    if (axis >= 0 && axis < 4) named[static_cast<size_t>(axis)] = true;
  }
  if (!p.empty() && (p.size() != 4 || named != std::vector<bool>(4, true))) {
    throw_shape_error(n, "An attribute is not a permutation of four axes.", std::string(perm),
                      to_string(n.input(i).type()));
  }
  const auto& shape = shape_if_known(n.input(i));
  if (!shape) return {};
  return attention_permuted(n, *shape, perm);
}

DType attention_precision(Value x) { return x.dtype() == DType::f64 ? DType::f64 : DType::f32; }

Value attention_scores(Node n, Value q, Value k, int first) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  Value bias = n.input(first), keep = n.input(first + 1);
  Value s = matmul(q, swap_last(k)) * real_of(n, "scale");
  if (keep) s = where(keep, s, real_of(n, "masked"));
  if (integer_of(n, "causal") != 0) {
    Value below = apply("Trilu", {zeros_like(s) + 1.0}, {{"upper", int64_t{0}}});
    s = where(greater(below, 0.5), s, kMinusInfinity);
  }
  return bias ? s + cast(bias, s.dtype()) : s;
}

Value attention_dropout(Node n, Value p, int first) {
  Value seed = n.input(first + 2);
  if (!seed) return p;
  return apply("steep.Dropout", {p, seed},
               {{"ratio", real_of(n, "ratio")}, {"stream", integer_of(n, "stream")}});
}

namespace {

constexpr int kBias = 3;

std::vector<Type> attention_infer(Node n) {
  const auto q = attention_shape(n, 0, "perm_q"), k = attention_shape(n, 1, "perm_k"),
             v = attention_shape(n, 2, "perm_v");
  Type y{n.input(0).dtype(), {}}, rows{attention_precision(n.input(0)), {}};
  if (!q || !k || !v) return {y, rows, rows};
  auto differ = [](const Dim& a, const Dim& b) {
    return a.known() && b.known() && a.value() != b.value();
  };
  if (differ((*q)[0], (*k)[0]) || differ((*q)[1], (*k)[1]) || differ((*q)[0], (*v)[0]) ||
      differ((*q)[1], (*v)[1]) || differ((*q)[3], (*k)[3]) || differ((*k)[2], (*v)[2])) {
    throw_shape_error(n, "Queries, keys and values do not fit.",
                      "heads [b, h, sq, d], [b, h, sk, d] and [b, h, sk, dv]",
                      to_string(q) + ", " + to_string(k) + " and " + to_string(v));
  }
  y.shape = attention_permuted(n, {(*q)[0], (*q)[1], (*q)[2], (*v)[3]}, "perm_y");
  rows.shape = Shape{(*q)[0], (*q)[1], (*q)[2]};
  return {y, rows, rows};
}

std::vector<Value> attention_decompose(Node n) {
  const DType dtype = attention_precision(n.input(0));
  auto heads = [&](int i, std::string_view perm) {
    return cast(attention_permuted(n, n.input(i), perm), dtype);
  };
  Value s = attention_scores(n, heads(0, "perm_q"), heads(1, "perm_k"), kBias);
  const bool zero_shut = integer_of(n, "zero_shut") != 0;
  Value p = apply(zero_shut ? "steep.SafeSoftmax" : "Softmax", {s}, {{"axis", int64_t{-1}}});
  Value max = apply("ReduceMax", {s, ints(n.graph(), {-1})}, {{"keepdims", int64_t{0}}});
  Value total = sum(exp(s - unsqueeze(max, {-1})), {-1}, false);
  const bool zero_nan = integer_of(n, "zero_nan") != 0;
  if (zero_nan || zero_shut) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (zero_nan) p = where(apply("IsNaN", {p}), 0, p);
    Value masked = zero_nan ? apply("IsNaN", {total}) : equal(max, -kInfinity);
    max = where(masked, kInfinity, max);
    total = where(masked, kInfinity, total);
  }
  Value y = matmul(attention_dropout(n, p, kBias), heads(2, "perm_v"));
  return {attention_permuted(n, cast_like(y, n.input(0)), "perm_y"), max, total};
}

}  // namespace

extern const OpDef kSteepAttention = {.name = "steep.Attention",
                                      .attributes = kAttentionAttributes,
                                      .infer = attention_infer,
                                      .decompose = attention_decompose};

}  // namespace steep
