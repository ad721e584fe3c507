// steep.SoftmaxCrossEntropy(logits[N, C], labels[N], weights[C]?){ignore_index, reduction, dtype} →
// loss, lse[N], lse_rest[N]: lossᵢ = weights[labelsᵢ] (lseᵢ - logits[i, labelsᵢ]) with lse = ln Σ
// exp(logits) of each row; lse_rest is the rounding error of lse. The results are of `dtype`, by
// default that of the logits. The error of the loss is relative to the loss, even for tiny losses.
// Attributes first, classes: the scores are a part of `classes` classes, from `first` on; labels
// are those of all classes. The loss of a label in another part is lse. Attribute some_rows: the
// rows are a subset of the caller's rows, so that row numbers differ from the caller's.
#include <limits>

#include "ops/defs/losses.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads softmax_cross_entropy_vjp(Node n, const Grads& dy) {
  Value logits = n.input(0), lse = n.output(1), lse_rest = n.output(2);
  Value dlogits;
  if (dy[0]) {
    std::vector<Value> inputs{dy[0], logits, n.input(1), lse, lse_rest};
    if (n.input(2)) inputs.push_back(n.input(2));
    Attrs attrs = n.attrs();
    attrs.set("dtype", static_cast<int64_t>(logits.dtype()));
    dlogits = apply("steep.SoftmaxCrossEntropyGrad", inputs, std::move(attrs));
  }
  if (dy.size() > 1 && dy[1]) {
    Value log_p = (logits - unsqueeze(lse, {1})) - unsqueeze(lse_rest, {1});
    Value through_lse = unsqueeze(dy[1], {1}) * exp(log_p);
    dlogits = dlogits ? dlogits + through_lse : through_lse;
  }
  return {dlogits};
}

std::vector<Type> softmax_cross_entropy_infer(Node n) {
  require_rank(n, 0, 2);
  require_rank(n, 1, 1);
  Type rows{result_dtype(n, n.input(0).dtype()), shape_if_known(n.input(1))};
  if (const auto& logits = shape_if_known(n.input(0)); logits && rows.shape) {
    const Dim &a = (*logits)[0], &b = (*rows.shape)[0];
    if (a.known() && b.known() && a.value() != b.value()) {
      throw_shape_error(n, "Scores and labels differ in their number of rows.", to_string(logits),
                        to_string(rows.shape));
    }
    if (a.known()) (*rows.shape)[0] = a;
  }
  const bool none = text_of(n, "reduction") == "none";
  return {none ? rows : Type{rows.dtype, Shape{}}, rows, rows};
}

/// ln(1 + x), exact near 0: adds a correction for the rounding error of the sum.
Value log1p(Value x) {
  Value y = x + 1;
  return log(y) + (x - (y - 1)) / y;
}

std::vector<Value> softmax_cross_entropy_decompose(Node n) {
  Graph& g = n.graph();
  Value logits = cast_like(n.input(0), n.output(0) ? n.output(0) : n.output(1));
  LabelRows rows = label_rows(n, n.input(1), n.input(2), logits.dtype());
  const Value inside = labels_of_part(n, logits, &rows);
  Value max = apply("ReduceMax", {logits, ints(g, {1})}, {{"keepdims", int64_t{1}}});
  max = apply("steep.StopGradient", {max});  // any shift gives the same results
  // A part may have no probability: its lse is -inf. A row without any has no softmax: NaN.
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const Value empty = inside ? equal(max, kNone) : Value();
  if (empty) max = where(empty, 0, max);
  // The number added to 1 is the sum of all other terms, plus exp(picked) - 1, which is 0 when the
  // label has the greatest logit.
  Value shifted = logits - max;
  Value target = pick(shifted, rows.labels);
  Value own = is_label(shifted, rows.labels);
  if (inside) {
    own = apply("And", {own, unsqueeze(inside, {1})});
    target = where(unsqueeze(inside, {1}), target, kNone);
  }
  Value others = sum(where(own, 0, exp(shifted)), {1}, true);
  Value log_sum = log1p(others + (exp(target) - 1));
  if (empty) log_sum = where(empty, kNone, log_sum);
  Value losses = log_sum - target;
  if (inside) losses = where(unsqueeze(inside, {1}), losses, max + log_sum);
  losses = squeeze(losses, {1});
  if (rows.weights) losses = losses * rows.weights;
  if (rows.counts) losses = where(rows.counts, losses, 0);
  // Knuth's two-sum: the sum of two numbers and its rounding error.
  Value lse = max + log_sum, increment = lse - max;
  Value rest = apply("steep.StopGradient", {(max - (lse - increment)) + (log_sum - increment)});
  if (empty) rest = where(empty, 0, rest);
  return {reduce_losses(n, losses, rows.weights), squeeze(lse, {1}), squeeze(rest, {1})};
}

}  // namespace

extern const OpDef kSteepSoftmaxCrossEntropy = {.name = "steep.SoftmaxCrossEntropy",
                                                .attributes = {{"reduction", "mean"}},
                                                .vjp = softmax_cross_entropy_vjp,
                                                .infer = softmax_cross_entropy_infer,
                                                .decompose = softmax_cross_entropy_decompose};

}  // namespace steep
