// steep.SoftmaxCrossEntropyGrad(dloss, logits[N, C], labels[N], lse[N], weights[C]?){ignore_index,
// reduction, dtype} → dlogits[i, c] = dlossᵢ wᵢ (softmax(logits)[i, c] - [c = labelsᵢ]), divided by
// Σ w under "mean". The result is of `dtype`, by default that of the logits.
#include "ops/losses.h"
#include "ops/own_types.h"

namespace steep {
namespace {

std::vector<Type> softmax_cross_entropy_grad_infer(Node n) {
  Type type = n.input(1).type();
  type.dtype = result_dtype(n, type.dtype);
  return {type};
}

std::vector<Value> softmax_cross_entropy_grad_decompose(Node n) {
  Graph& g = n.graph();
  Value dloss = n.input(0), lse = n.input(3), logits = cast_like(n.input(1), lse);
  const DType dtype = logits.dtype();
  const LabelRows rows = label_rows(n, n.input(2), n.input(4), dtype);
  Value classes = apply("Gather", {shape_of(logits), scalar(g, 1, DType::i64)});
  Value off_on =
      concat({unsqueeze(scalar(g, 0, dtype), {0}), unsqueeze(scalar(g, 1, dtype), {0})}, 0);
  Value target = apply("OneHot", {rows.labels, classes, off_on});
  Value slope = exp(logits - unsqueeze(lse, {1})) - target;
  Value scale = rows.weights ? dloss * rows.weights : dloss;
  if (n.attrs().string("reduction", "mean") == "mean") {
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
    .infer = softmax_cross_entropy_grad_infer,
    .decompose = softmax_cross_entropy_grad_decompose};

}  // namespace steep
