// Checks the operands of ONNX nodes before kernels, gradients and decompositions rely on them.
#pragma once

#include <onnx/defs/schema.h>

#include "ir/graph.h"

namespace steep {

/// Throws ShapeError unless the node has the required operands, their dtypes agree, their ranks
/// (where known) are ones that the operator supports, and the settings of windows and blocks are
/// too small to overflow. ONNX's functions check some of this, for some operators.
void check_operands(Node n, const onnx::OpSchema& schema);

}  // namespace steep
