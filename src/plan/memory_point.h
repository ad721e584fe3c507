// What a search for plans within a limit of memory finds (memory_planner.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace steep {

/// Nodes of forward that backward runs again: ids, in their order.
using Again = std::vector<uint32_t>;

/// One way to plan a graph.
struct MemoryPoint {
  size_t bytes = 0;  ///< run_bytes() of the plan
  double ms = 0;     ///< modelled, of all its nodes
  Again again{};
};

}  // namespace steep
