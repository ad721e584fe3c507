// What a step writes beside weights and moments: TrainingOptions::updates.
#pragma once

#include <span>
#include <string>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// The value of an output of the model. Throws ModelError, with those most like it.
Value output_named(const Graph& graph, const std::string& name);

/// Throws ModelError unless each is an initializer that is not asked to be trained, and an output
/// of its type.
void check_updates(const Graph& graph, std::span<const std::string> initializers,
                   const TrainingOptions& options);

/// Writes each, a state by now, when the weights are written. REQUIRES: the model's outputs are
/// the graph's.
void add_updates(Graph& graph, const TrainingOptions& options);

}  // namespace steep
