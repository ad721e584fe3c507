// The order and the memory of a graph whose nodes have kernels. This part of planning is cheap
// enough to be repeated for many variants of one graph (memory_planner.h).
#pragma once

#include <vector>

#include "plan/kernel_graph.h"
#include "plan/plan.h"

namespace steep {

/// By node id: the node's kernel; null for views and for copies between devices.
using KernelOf = std::vector<const NodeKernel*>;
/// By node id: the offsets of a view's outputs (KernelGraph::views); null for other nodes.
using ViewOf = std::vector<const Ints*>;

KernelOf kernels_of(const Graph& graph, const KernelGraph& kernel_graph);
ViewOf views_of(const Graph& graph, const KernelGraph& kernel_graph);

/// A graph's kernels, views and devices, from which lay_out() makes a plan.
struct LayoutInput {
  const KernelOf& kernels;
  const ViewOf& views;
  const std::vector<int>&
      device;  ///< by value id (assign_devices.h); values beyond its end are on the host
  const Devices& devices;
};

/// Plans the graph. Its steps have no kernels yet.
Plan lay_out(Graph graph, const LayoutInput& on);

/// Moves the kernels into the steps. `offloaded`: bytes of the states that lie in a file, and do
/// not count. Throws OutOfMemoryError if a run would exceed the budget.
Plan complete(Plan plan, KernelGraph kernel_graph, size_t offloaded);

/// The host's memory that a run of the plan uses, in bytes: arena, inputs, constants, states and
/// results.
size_t run_bytes(const Plan& plan);

}  // namespace steep
