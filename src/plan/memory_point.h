// The results of a search for plans within a memory limit (memory_planner.h).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace steep {

/// A node of forward that backward runs again. One copy serves the readers from `from` on, up to
/// the next entry of the same node; readers before the first entry read what forward computed.
struct RecomputedNode {
  uint32_t id = 0;
  uint32_t from = 0;  ///< a node of backward: its place among the nodes of backward, from 0

  auto operator<=>(const RecomputedNode&) const = default;
};

/// What a plan computes again; sorted.
using RecomputedNodes = std::vector<RecomputedNode>;

/// A plan of a graph, by its costs.
struct MemoryPoint {
  size_t bytes = 0;  ///< run_bytes() of the plan
  double ms = 0;     ///< estimated time of all its nodes
  RecomputedNodes recomputed{};
};

}  // namespace steep
