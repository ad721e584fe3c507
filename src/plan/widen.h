// A second chance for nodes whose element type a provider has no kernel for.
#pragma once

#include "ir/graph.h"

namespace steep {

/// The node's outputs computed by the same operator in the next wider types (floats of 16 bits as
/// float32, integers below 32 bits as int32, those of 32 bits as int64) and cast back; null where
/// the node has none. Empty when no input has such a type.
std::vector<Value> widened(Node n);

}  // namespace steep
