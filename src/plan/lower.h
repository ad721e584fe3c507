#pragma once

#include <unordered_map>

#include "device/device.h"
#include "device/kernel.h"
#include "ir/graph.h"
#include "plan/plan.h"

namespace steep {

/// A node's kernel, and the device that it is for: 0 is the host.
struct Lowered {
  std::unique_ptr<ProviderKernel> kernel;
  std::string_view candidate;
  int device = 0;
};

struct LoweredGraph {
  std::unordered_map<uint32_t, Lowered> kernels;  ///< by node id; views need none
  std::vector<Declined> declined;
};

/// Chooses a kernel for every node that needs one, on the first device that has one, replacing
/// nodes that no kernel accepts by their decomposition. Throws ProviderError listing every node
/// that cannot run.
LoweredGraph lower(Graph& graph, const Devices& devices);

/// By output of `n`: the byte offset at which it lies in input 0, when all are that input's bytes
/// in place; empty otherwise.
Ints view_offsets(Node n);

}  // namespace steep
