// Backward computes again what forward then need not keep.
#pragma once

#include <utility>
#include <vector>

#include "plan/layout.h"

namespace steep {

/// A node that was added, and the node of forward that it repeats: ids.
using Repetitions = std::vector<std::pair<uint32_t, uint32_t>>;

/// Of each node of forward for which `again` (by node id) is true, backward reads a repetition,
/// which stands before its first reader and reads repetitions in turn, where there are. Views of
/// what is repeated are repeated. Prunes; of nodes pruned there is no repetition in the result.
/// REQUIRES: the nodes are such that can_repeat().
Repetitions repeat(Graph& graph, const KernelOf& kernels, const std::vector<char>& again);

/// By node id: whether backward may compute the node again with the same bits. False for nodes that
/// write or read a state that forward overwrites, for copies between devices, and for nodes on a
/// device other than the host.
std::vector<char> can_repeat(const Graph& graph, const KernelOf& kernels);

}  // namespace steep
