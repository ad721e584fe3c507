// What kernels, gradients and decompositions of ONNX's operators count on.
#pragma once

#include <onnx/defs/schema.h>

#include "ir/graph.h"

namespace steep {

/// Throws ShapeError unless the node has the operands that it needs, of agreeing dtypes and of
/// ranks (where they are known) that its operator works on, and settings of windows and blocks with
/// which no arithmetic overflows. ONNX's own functions look at some of this, for some operators.
void check_operands(Node n, const onnx::OpSchema& schema);

}  // namespace steep
