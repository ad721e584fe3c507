// Between the choice of kernels and planning: gives every value a device, and adds a node for each
// copy between devices.
#pragma once

#include <string_view>

#include "ir/graph.h"
#include "plan/kernel_graph.h"

namespace steep {

/// The operator of a copy between devices: the bytes of input 0 on the device of the attribute
/// "to", a number as in Buffer::device.
inline constexpr std::string_view kCopy = "steep.Copy";

/// The device of the result of a copy.
int destination(Node copy);

/// Inserts copies, so that every kernel finds its operands on its device (or on the host, if it
/// requests that), and so that outputs and updates are on the host. A value is copied to a device
/// only once. Copies between two other devices go through the host. Returns the device of each
/// value, by id. Does not change the graph if all kernels are the host's.
std::vector<int> assign_devices(Graph& graph, const KernelGraph& kernel_graph);

}  // namespace steep
