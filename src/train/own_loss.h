// Losses that the user gives as ONNX models.
#pragma once

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// Whether options.loss names an ONNX model, or options.loss_model is one.
bool is_own_loss(const TrainingOptions& options);

/// If options.loss is the path of a model, reads it into options.loss_model with its external data,
/// so that all graphs of a session have the same loss, whatever becomes of the files. Throws
/// IoError; ModelError if a file is too large or no model, or its data are unsafe.
void hold_own_loss(TrainingOptions* options);

/// A loss as a graph: inputs scores and labels, one output.
struct OwnLoss {
  Graph graph;
  Type label() const { return graph.inputs()[1].type(); }
};

/// Imports the loss for scores of this type. Throws ModelError (no model; other than two inputs and
/// one output; random operators), ShapeError (inputs that do not take such scores, an output that
/// is not one float element), IoError. Errors name the loss.
OwnLoss own_loss(const Value& scores, const TrainingOptions& options);

}  // namespace steep
