// A second attempt for nodes for whose dtype no provider has a kernel.
#pragma once

#include "ir/graph.h"

namespace steep {

/// Computes the node's outputs by the same operator in the next wider types (16-bit floats as
/// float32, integers below 32 bits as int32, 32-bit integers as int64), and casts them back. An
/// output that the node does not have is null. Empty if no input has such a type.
std::vector<Value> widened(Node n);

}  // namespace steep
