// Recomputes nodes of forward in backward, so that their results need not be kept.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/memory_point.h"

namespace steep {

/// A node that was added to backward.
struct Recomputation {
  uint32_t copy = 0;    ///< its id
  RecomputedNode of{};  ///< the node of forward that it runs again, and the first of its readers
  uint32_t reader = 0;  ///< the place of the node of backward for which it was added, as in `of`
};
using Recomputations = std::vector<Recomputation>;

/// Adds to backward copies of nodes of forward. Backward reads the results of a copy, which stands
/// before its first reader and itself reads other copies if there are any. Views of recomputed
/// values are recomputed, too. Prunes the graph; copies that were pruned are not in the result.
/// REQUIRES: `chosen` is sorted, and can_recompute() is true for its nodes.
Recomputations recompute_nodes(Graph& graph, const KernelOf& kernels,
                               const RecomputedNodes& chosen);

/// The entry of `chosen` whose copy serves a reader at this place; null if the reader reads what
/// forward computed. REQUIRES: `chosen` is sorted.
const RecomputedNode* serving(const RecomputedNodes& chosen, uint32_t node, uint32_t reader);

/// By node id: whether backward may compute the node again with the same bits. False for nodes that
/// write a state or read a state that forward overwrites, for copies between devices, and for nodes
/// on other devices than the host.
std::vector<char> can_recompute(const Graph& graph, const KernelOf& kernels);

}  // namespace steep
