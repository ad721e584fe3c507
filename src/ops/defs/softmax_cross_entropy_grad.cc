// steep.SoftmaxCrossEntropyGrad(dloss, logits[N, C], labels[N], lse[N], lse_rest[N],
// weights[C]?){ignore_index, reduction, dtype} → dlogits[i, c] = dlossᵢ wᵢ (softmax(logits)[i, c] -
// [c = labelsᵢ]), divided by Σ w under "mean". The result is of `dtype`, by default that of the
// logits. Attributes first, classes: as for steep.SoftmaxCrossEntropy; lse is that of all classes.
// Errors are relative to the element, also at the label.
#include "ops/defs/losses.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> softmax_cross_entropy_grad_infer(Node n) {
  Type type = n.input(1).type();
  type.dtype = result_dtype(n, type.dtype);
  return {type};
}

std::vector<Value> softmax_cross_entropy_grad_decompose(Node n) {
  Value dloss = n.input(0), lse = n.input(3), logits = cast_like(n.input(1), lse);
  const DType dtype = logits.dtype();
  LabelRows rows = label_rows(n, n.input(2), n.input(5), dtype);
  const Value inside = labels_of_part(n, logits, &rows);
  Value log_p = (logits - unsqueeze(lse, {1})) - unsqueeze(n.input(4), {1});
  // p - 1, exact where p is close to 1.
  Value t = tanh(pick(log_p, rows.labels) * 0.5);
  Value own = is_label(log_p, rows.labels);
  if (inside) own = apply("And", {own, unsqueeze(inside, {1})});
  Value slope = where(own, 2.0 * t / (1.0 - t), exp(log_p));
  Value scale = rows.weights ? dloss * rows.weights : dloss;
  if (text_of(n, "reduction") == "mean") {
    scale = scale / (rows.weights ? sum(rows.weights, {}, false)
                                  : cast(apply("Size", {n.input(2)}), dtype));
  }
  scale = scale.rank() == 0 ? scale : unsqueeze(scale, {1});
  Value dlogits = scale * slope;
  if (rows.counts) dlogits = where(unsqueeze(rows.counts, {1}), dlogits, 0);
  return {cast_like(dlogits, n.output(0))};
}

}  // namespace

extern const OpDef kSteepSoftmaxCrossEntropyGrad = {
    .name = "steep.SoftmaxCrossEntropyGrad",
    .attributes = {{"reduction", "mean"}},
    .infer = softmax_cross_entropy_grad_infer,
    .decompose = softmax_cross_entropy_grad_decompose};

}  // namespace steep
