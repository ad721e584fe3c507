// Between lowering and planning: every node has a device, and what crosses between two is a node.
#pragma once

#include <string_view>

#include "ir/graph.h"
#include "plan/lowered.h"

namespace steep {

/// The operator of a crossing: input 0's bytes on the device of the attribute "to", a number as in
/// Buffer::device.
inline constexpr std::string_view kCopy = "steep.Copy";

/// Where a copy puts its result.
int destination(Node copy);

/// Inserts copies such that every kernel finds its operands on its device, or on the host where it
/// wants them there, and that outputs and updates are the host's. A value crosses to a device once.
/// Two devices meet by way of the host. Returns the device of each value, by id. Does nothing to
/// the graph when no kernel is for another device than the host.
std::vector<int> place(Graph& graph, const LoweredGraph& lowering);

}  // namespace steep
