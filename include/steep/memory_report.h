// What a step keeps of forward and what backward computes again, within a limit of memory.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace steep {

/// A node of forward that backward could run again, so that its results need not be kept.
struct MemoryChoice {
  std::string node;
  std::string op;
  size_t bytes = 0;    ///< of its results
  double ms = 0;       ///< modelled: to run it once more
  bool again = false;  ///< does backward run it again?
};

/// A plan that the planner found.
struct MemoryPlan {
  size_t bytes = 0;  ///< that it holds at its peak
  double ms = 0;     ///< modelled, of all its nodes
};

/// All bytes are those that a memory limit bounds: parameters, moments, inputs, constants, results
/// and the arena of intermediate values.
struct MemoryReport {
  size_t limit = 0;      ///< 0: none
  MemoryPlan planned{};  ///< what runs
  MemoryPlan plain{};    ///< what would run without a limit
  /// None is both slower and larger than another; the fastest and largest first. The bytes of the
  /// last are the least limit that can be met.
  std::vector<MemoryPlan> plans{};
  std::vector<MemoryChoice> choices{};  ///< in the order of forward
  /// A table of the choices, and a line for the plans.
  std::string text() const;
};

}  // namespace steep
