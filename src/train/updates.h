// TrainingOptions::updates: the other initializers that a step writes.
#pragma once

#include <span>
#include <string>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// The value of an output of the model. Throws ModelError that lists similar names.
Value output_named(const Graph& graph, const std::string& name);

/// Throws ModelError unless each key is an initializer that is not in `trainable`, and each value
/// is an output of the initializer's type.
void check_updates(const Graph& graph, std::span<const std::string> initializers,
                   const TrainingOptions& options);

/// Adds the writes, at the same time as those of the weights. REQUIRES: the keys are states
/// already, and the outputs of `graph` are the model's.
void add_updates(Graph& graph, const TrainingOptions& options);

}  // namespace steep
