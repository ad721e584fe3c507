// Losses, built from graph operators and attached to an output of a model.
#pragma once

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

struct AttachedLoss {
  Value loss;                ///< one float element
  Value label;               ///< null when the loss is an output of the model
  bool label_added = false;  ///< the label is an input that was added at the end
};

/// Makes options.output an output of `graph`, where it is a float value within.
void offer_output(Graph& graph, const TrainingOptions& options);

/// The output of `graph` that options.output means. Throws ModelError naming the outputs there are.
const Output& find_output(const Graph& graph, const TrainingOptions& options);

/// Adds the loss of options.loss to `graph`, forward phase; graph outputs stay as they are. A loss
/// of scores on an output of probabilities (the Softmax or Sigmoid of scores, as classifiers are
/// exported) is attached to the scores: the loss applies these itself.
/// Throws ModelError (unknown loss or output; the loss is not one float element), ShapeError (the
/// output's type does not suit the loss).
AttachedLoss attach_loss(Graph& graph, const TrainingOptions& options);

/// What a mean cross entropy divides by, one float element: labels that count, or their classes'
/// weights. Null for other losses, and where each row counts once.
Value loss_weight(Value loss);

/// What is wrong with the output to which options.loss is attached, with the remedy; "" as a rule.
std::string doubts(const Graph& graph, const TrainingOptions& options);

/// mean((y - t)²) over all elements.
Value mse_loss(Value y, Value target);
/// Mean over rows of -log softmax(logits)[label]; logits [.., C], labels int64 [..].
Value softmax_cross_entropy_loss(Value logits, Value labels, std::optional<int64_t> ignore_index);
/// Mean of t·softplus(-x) + (1-t)·softplus(x): no overflow, no cancellation, and differentiable at
/// 0.
Value binary_cross_entropy_with_logits_loss(Value logits, Value target);

}  // namespace steep
