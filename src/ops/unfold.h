// Copies the nodes of a body into the graph around it.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Copies the nodes of a body into `g`, with `operands` for its inputs, and infers their types.
/// Returns the values for its outputs.
std::vector<Value> unfold(const Graph& body, std::span<const Value> operands, Graph& g);

}  // namespace steep
