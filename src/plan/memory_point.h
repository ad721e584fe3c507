// The results of a search for plans within a memory limit (memory_planner.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace steep {

/// Nodes of forward that backward runs again: ids, sorted.
using RecomputedNodes = std::vector<uint32_t>;

/// A plan of a graph, by its costs.
struct MemoryPoint {
  size_t bytes = 0;  ///< run_bytes() of the plan
  double ms = 0;     ///< estimated time of all its nodes
  RecomputedNodes recomputed{};
};

}  // namespace steep
