#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Adds the nodes of a body to `g`, over `operands`, which stand for its inputs, and infers their
/// types. Returns what stands for its outputs.
std::vector<Value> unfold(const Graph& body, std::span<const Value> operands, Graph& g);

}  // namespace steep
