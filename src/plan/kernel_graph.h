// A graph that the planner can lay out: every node has a kernel or is a view. The planner does not
// need the OpDefs, so that a program without the table of operators can plan, too.
#pragma once

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "device/kernel.h"
#include "ir/attr.h"

namespace steep {

/// A node's kernel, and its device: 0 is the host.
struct NodeKernel {
  std::unique_ptr<ProviderKernel> kernel;
  std::string_view candidate;
  int device = 0;
};

struct KernelGraph {
  std::unordered_map<uint32_t, NodeKernel> kernels;  ///< by node id
  /// For nodes without a kernel, by id: the byte offset of each output in input 0.
  std::unordered_map<uint32_t, Ints> views;
  std::vector<Declined> declined;
};

/// The kernel of the first of `devices` that accepts the node. If it is the host's, `declined` gets
/// the reasons of the other devices. Without a kernel, *why_not gets all reasons.
NodeKernel choose_on(const Devices& devices, Node n, std::vector<Declined>& declined,
                     std::string* why_not);

}  // namespace steep
