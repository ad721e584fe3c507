// Losses, made of graph operators and attached to an output of a model.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"
#include "steep/steep.h"

namespace steep {

struct AttachedLoss {
  Value loss;                ///< one float element
  Value mean;                ///< the operand for loss_weight(): the loss, or a part of it
  Value label;               ///< null if the loss is an output of the model
  bool label_added = false;  ///< the label is an input that was appended
};

/// Whether a tensor of this type may have exactly one element.
bool may_be_one_element(const Type& type);

/// The names that TrainingOptions::loss may have.
std::vector<std::string> loss_names();

/// Whether the labels of this loss are class numbers.
bool takes_classes(const std::string& loss);
/// Whether this loss compares each element with a label of its own; labels of another shape would
/// broadcast.
bool compares_elements(const std::string& loss);

/// Throws ModelError for a number out of range, and for an option that the loss does not use.
void check_loss(const TrainingOptions& options);

/// Makes options.output an output of `graph`, if it names a float value inside of the graph.
void offer_output(Graph& graph, const TrainingOptions& options);

/// The output of `graph` that options.output names. Without a name: the only output, the one named
/// "loss", or the only one of floats. Throws ModelError that lists the outputs.
const Output& find_output(const Graph& graph, const TrainingOptions& options);

/// Whether attach_loss() attaches the loss to scores inside of the graph, because the output is the
/// Softmax or Sigmoid of them that the loss itself applies.
bool reads_scores_within(const Graph& graph, const TrainingOptions& options);

/// Adds the loss of options.loss to `graph`, in the forward phase. The graph's outputs do not
/// change. If the output has probabilities (the Softmax or Sigmoid of scores, as in many exported
/// classifiers) and the loss takes scores, the loss is attached to the scores: it applies that
/// operator itself. Throws ModelError (unknown loss or output; the loss is not one float element)
/// and ShapeError (the output's type does not suit the loss).
AttachedLoss attach_loss(Graph& graph, const TrainingOptions& options);

/// The divisor of a mean cross entropy, one float element: the number of labels that count, or the
/// sum of their class weights. Null for other losses, and if each row counts once.
Value loss_weight(Value loss);

/// The patterns of loss_weight() and doubts(), for documentation.
std::vector<PatternRuleInfo> loss_patterns();

/// A text on a problem of the output to which options.loss is attached, with the remedy; usually
/// "".
std::string doubts(const Graph& graph, const TrainingOptions& options);

}  // namespace steep
