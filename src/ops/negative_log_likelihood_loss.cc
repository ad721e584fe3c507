// NegativeLogLikelihoodLoss(log_prob[N, C, d…], labels[N, d…], weights[C]?){ignore_index,
// reduction} → loss.
#include "ops/losses.h"
#include "ops/positions.h"

namespace steep {
namespace {

std::vector<Value> negative_log_likelihood_loss_decompose(Node n) {
  Value log_prob = n.input(0);
  const LabelRows rows = label_rows(n, n.input(1), n.input(2), log_prob.dtype());
  const Value labels = from_the_front(rows.labels, cast_like(extent_of(log_prob, 1), rows.labels));
  Value picked =
      apply("GatherElements", {log_prob, unsqueeze(labels, {1})}, {{"axis", int64_t{1}}});
  Value losses = -squeeze(picked, {1});
  if (rows.weights) losses = losses * rows.weights;
  if (rows.counts) losses = where(rows.counts, losses, 0);
  return {reduce_losses(n, losses, rows.weights)};
}

}  // namespace

extern const OpDef kNegativeLogLikelihoodLoss = {
    .name = "NegativeLogLikelihoodLoss", .decompose = negative_log_likelihood_loss_decompose};

}  // namespace steep
