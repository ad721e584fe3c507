// NegativeLogLikelihoodLoss(log_prob[N, C, d…], labels[N, d…], weights[C]?){ignore_index,
// reduction} → loss. When log_prob comes from a LogSoftmax, this is cross entropy, which the fused
// op computes with a smaller rounding error.
#include "ops/defs/losses.h"
#include "ops/positions.h"

namespace steep {
namespace {

std::vector<Value> negative_log_likelihood_loss_decompose(Node n) {
  Value log_prob = n.input(0);
  const Node maker = log_prob.producer();
  if (maker && maker.op() == "LogSoftmax" && maker.input(0).rank() == log_prob.rank()) {
    const int64_t axis = integer_of(maker, "axis");
    if (axis == 1 || axis == 1 - log_prob.rank()) {
      std::vector<Value> inputs{maker.input(0), n.input(1)};
      if (n.input(2)) inputs.push_back(n.input(2));
      return {apply("SoftmaxCrossEntropyLoss", inputs, n.attrs())};
    }
  }
  const LabelRows rows = label_rows(n, n.input(1), n.input(2), log_prob.dtype());
  const Value labels = from_the_front(rows.labels, cast_like(extent_of(log_prob, 1), rows.labels));
  Value losses = -squeeze(pick(log_prob, labels), {1});
  if (rows.weights) losses = losses * rows.weights;
  if (rows.counts) losses = where(rows.counts, losses, 0);
  return {reduce_losses(n, losses, rows.weights)};
}

}  // namespace

extern const OpDef kNegativeLogLikelihoodLoss = {
    .name = "NegativeLogLikelihoodLoss",
    .attributes = {{"reduction", "mean"}},
    .ranks = "2+ < 1",
    .decompose = negative_log_likelihood_loss_decompose};

}  // namespace steep
