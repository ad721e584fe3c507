// When the steps of a plan need each value of forward, and how much of that time is near the peak.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/layout.h"
#include "plan/recompute.h"

namespace steep {

/// A step of backward that reads a value or a copy of it, or that makes the value or a copy.
struct Touch {
  int step = 0;
  uint32_t reader = 0;  ///< the place in backward of the node that the step runs, or runs for
  bool makes = false;
  int64_t copy = -1;  ///< RecomputedNode::from of the copy; -1: the value itself
};

/// The steps of one plan. Values are those of the graph that was planned; what reads a view counts
/// as reading the value that it views, and views themselves have no touches.
class Lives {
 public:
  Lives() = default;
  /// `plan`: of a copy of `graph` to which recompute_nodes() added `added`.
  Lives(const Graph& graph, const KernelOf& kernels, const Plan& plan, const Recomputations& added);

  /// In the order of steps.
  const std::vector<Touch>& touches(Value v) const { return touches_[v.id()]; }
  /// The first touch at this step or later; null if there is none.
  const Touch* next(Value v, int step) const;
  /// The last touch before this step; null if there is none in backward.
  const Touch* previous(Value v, int step) const;
  /// The last step before this one that needs the value, in forward too; -1: none.
  int last_before(Value v, int step) const;
  /// Whether the value or a copy is in memory at this step because this or a later step reads it.
  bool is_kept_at(Value v, int step) const;
  /// The fraction of the steps near the peak that lie between two steps.
  double near_peak(int from, int to) const;

 private:
  void note_peak(const Plan& plan);

  std::vector<int> last_forward_;            // by value id
  std::vector<std::vector<Touch>> touches_;  // by value id
  std::vector<int> near_;                    // by step: the number of earlier steps near the peak
};

}  // namespace steep
