// Which values of forward a step keeps, and which it computes again in backward, within a memory
// limit.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace steep {

/// A node of forward that backward could run again instead of keeping its results.
struct MemoryChoice {
  std::string node;
  std::string op;
  size_t bytes = 0;    ///< of its results
  double ms = 0;       ///< estimated time of running it once more
  bool again = false;  ///< whether backward runs it again
};

/// A plan that the planner found.
struct MemoryPlan {
  size_t bytes = 0;  ///< memory at its peak
  double ms = 0;     ///< estimated time of all its nodes
};

/// All bytes count what a memory limit counts: parameters, moments, inputs, constants, results and
/// the arena of intermediate values.
struct MemoryReport {
  size_t limit = 0;      ///< 0: none
  MemoryPlan planned{};  ///< the plan that runs
  MemoryPlan plain{};    ///< the plan that would run without a limit
  /// Plans of which none is both slower and larger than another, from the fastest and largest to
  /// the slowest and smallest. The last has the lowest limit that can be met.
  std::vector<MemoryPlan> plans{};
  std::vector<MemoryChoice> choices{};  ///< in the order of forward
  /// A table of the choices, and one line per plan.
  std::string text() const;
};

}  // namespace steep
