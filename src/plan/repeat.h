// Repeats nodes of forward in backward, so that their results need not be kept.
#pragma once

#include <utility>
#include <vector>

#include "plan/layout.h"

namespace steep {

/// Ids of a node that was added and of the node of forward that it repeats.
using Repetitions = std::vector<std::pair<uint32_t, uint32_t>>;

/// Repeats each node of forward for which `again` (by node id) is true. Backward reads the
/// repetition, which stands before its first reader and itself reads repetitions if there are any.
/// Views of repeated values are repeated, too. Prunes the graph; the result has no repetitions that
/// were pruned. REQUIRES: can_repeat() is true for the nodes.
Repetitions repeat(Graph& graph, const KernelOf& kernels, const std::vector<char>& again);

/// By node id: whether backward may compute the node again with the same bits. False for nodes that
/// write a state or read a state that forward overwrites, for copies between devices, and for nodes
/// on other devices than the host.
std::vector<char> can_repeat(const Graph& graph, const KernelOf& kernels);

}  // namespace steep
