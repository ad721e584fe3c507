// SoftmaxCrossEntropyLoss(scores[N, C, d…], labels[N, d…], weights[C]?){ignore_index, reduction} →
// loss, log_prob?. It runs as steep.SoftmaxCrossEntropy over rows, and is differentiated as that.
#include "ops/defs/losses.h"

namespace steep {
namespace {

std::vector<Value> softmax_cross_entropy_loss_decompose(Node n) {
  Value scores = n.input(0), labels = n.input(1);
  std::vector<Value> inputs{classes_last(scores),
                            labels.rank() == 1 ? labels : reshape(labels, {-1})};
  if (n.input(2)) inputs.push_back(n.input(2));
  const std::vector<Value> rows = apply_n("steep.SoftmaxCrossEntropy", inputs, 3, n.attrs());
  std::vector<Value> results{rows[0]};
  if (text_of(n, "reduction") == "none") results[0] = reshape_like(rows[0], labels);
  const auto of_classes = [&](Value v) { return unsqueeze(reshape_like(v, labels), {1}); };
  if (n.output_count() > 1) results.push_back((scores - of_classes(rows[1])) - of_classes(rows[2]));
  return results;
}

}  // namespace

extern const OpDef kSoftmaxCrossEntropyLoss = {.name = "SoftmaxCrossEntropyLoss",
                                               .attributes = {{"reduction", "mean"}},
                                               .ranks = "2+ < 1",
                                               .decompose = softmax_cross_entropy_loss_decompose};

}  // namespace steep
