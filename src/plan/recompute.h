// Recomputes nodes of forward in backward, so that their results need not be kept.
#pragma once

#include <utility>
#include <vector>

#include "plan/layout.h"

namespace steep {

/// Ids of a node that was added and of the node of forward that it recomputes.
using Recomputations = std::vector<std::pair<uint32_t, uint32_t>>;

/// Adds to backward a copy of each node of forward for which `chosen` (by node id) is true.
/// Backward reads the results of the copy, which stands before its first reader and itself reads
/// other copies if there are any. Views of recomputed values are recomputed, too. Prunes the graph;
/// copies that were pruned are not in the result. REQUIRES: can_recompute() is true for the nodes.
Recomputations recompute_nodes(Graph& graph, const KernelOf& kernels,
                               const std::vector<char>& chosen);

/// By node id: whether backward may compute the node again with the same bits. False for nodes that
/// write a state or read a state that forward overwrites, for copies between devices, and for nodes
/// on other devices than the host.
std::vector<char> can_recompute(const Graph& graph, const KernelOf& kernels);

}  // namespace steep
