// A graph that the planner can lay out: every node has a kernel, or is a view. From here on the
// OpDefs are not needed, so a program without the table of operators can plan too.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "device/kernel.h"
#include "ir/attr.h"

namespace steep {

/// A node's kernel, and the device that it is for: 0 is the host.
struct Lowered {
  std::unique_ptr<ProviderKernel> kernel;
  std::string_view candidate;
  int device = 0;
};

struct LoweredGraph {
  std::unordered_map<uint32_t, Lowered> kernels;  ///< by node id
  /// By node id, of those without a kernel: by output, the byte offset at which it lies in input 0.
  std::unordered_map<uint32_t, Ints> views;
  std::vector<Declined> declined;
};

/// Of the first of `devices` that has a kernel for the node; what the others said, for the host, is
/// noted in `declined`. Without a kernel all reasons are in *why_not.
Lowered choose_on(const Devices& devices, Node n, std::vector<Declined>& declined,
                  std::string* why_not);

}  // namespace steep
