// Losses, built from graph operators and attached to an output of a model.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "ops/pattern.h"
#include "steep/steep.h"

namespace steep {

struct AttachedLoss {
  Value loss;                ///< one float element
  Value mean;                ///< what loss_weight() is asked about: the loss, or a part of it
  Value label;               ///< null when the loss is an output of the model
  bool label_added = false;  ///< the label is an input that was added at the end
};

/// Those of TrainingOptions::loss.
std::vector<std::string> loss_names();

/// Of what these losses' labels are: numbers of classes.
bool takes_classes(const std::string& loss);
/// Do these compare every element with one of the labels, which would broadcast?
bool compares_elements(const std::string& loss);

/// Throws ModelError for a number that is out of range, and for one that the loss does not have.
void check_loss(const TrainingOptions& options);

/// Makes options.output an output of `graph`, where it is a float value within.
void offer_output(Graph& graph, const TrainingOptions& options);

/// The output of `graph` that options.output means. Throws ModelError naming the outputs there are.
const Output& find_output(const Graph& graph, const TrainingOptions& options);

/// Is the loss attached to scores within, since the output is what it makes of them itself?
bool reads_scores_within(const Graph& graph, const TrainingOptions& options);

/// Adds the loss of options.loss to `graph`, forward phase; graph outputs stay as they are. A loss
/// of scores on an output of probabilities (the Softmax or Sigmoid of scores, as classifiers are
/// exported) is attached to the scores: the loss applies these itself.
/// Throws ModelError (unknown loss or output; the loss is not one float element), ShapeError (the
/// output's type does not suit the loss).
AttachedLoss attach_loss(Graph& graph, const TrainingOptions& options);

/// What a mean cross entropy divides by, one float element: labels that count, or their classes'
/// weights. Null for other losses, and where each row counts once.
Value loss_weight(Value loss);

/// What loss_weight() and doubts() recognise.
std::vector<RowInfo> loss_rows();

/// What is wrong with the output to which options.loss is attached, with the remedy; "" as a rule.
std::string doubts(const Graph& graph, const TrainingOptions& options);

}  // namespace steep
