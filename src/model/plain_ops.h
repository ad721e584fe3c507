// Steep's own operators whose kernels are all there is to them, in ONNX's operators: for models
// that other runtimes are to run.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace steep {

/// The node's outputs as ONNX's operators (or others of our own) compute them: its decomposition,
/// or one that is too slow to run here. Empty when there is none. Extents may be unknown; throws
/// ModelError naming the node where they must be known.
std::vector<Value> in_plain_ops(Node n);

}  // namespace steep
