// Order and memory of a graph whose nodes have kernels: the part of planning that is cheap enough
// to be repeated for many variants of one graph (memory_planner.h).
#pragma once

#include <vector>

#include "plan/lowered.h"
#include "plan/plan.h"

namespace steep {

/// By node id: what computes it; null for views and for copies between devices.
using KernelOf = std::vector<const Lowered*>;
/// By node id: where the outputs of a view lie (LoweredGraph::views); null for other nodes.
using ViewOf = std::vector<const Ints*>;

KernelOf kernels_of(const Graph& graph, const LoweredGraph& lowered);
ViewOf views_of(const Graph& graph, const LoweredGraph& lowered);

/// A graph with what was chosen for it before it is laid out.
struct LoweredPlan {
  const KernelOf& kernels;
  const ViewOf& views;
  const std::vector<int>& device;  ///< by value id (place.h); values beyond its end are the host's
  const Devices& devices;
};

/// Plans the graph. Its steps have no kernels yet.
Plan lay_out(Graph graph, const LoweredPlan& on);

/// Gives the steps their kernels. Throws OutOfMemoryError when a run would exceed the budget.
Plan complete(Plan plan, LoweredGraph lowered);

/// Bytes of the host's memory that a run of the plan takes: arena, inputs, constants, states and
/// results.
size_t run_bytes(const Plan& plan);

}  // namespace steep
