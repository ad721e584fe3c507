// Copies the nodes of one graph into another.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Copies the nodes of `from` to the end of `to`, where `operands` take the place of the inputs of
/// `from`. Returns the outputs of `from`, as values of `to`.
std::vector<Value> splice(const Graph& from, Graph& to, std::span<const Value> operands);

}  // namespace steep
