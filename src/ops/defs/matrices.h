// What the rules of linear algebra share: operators of our own on stacks of matrices, the last two
// axes of their operands.
#pragma once

#include <string>

#include "ops/build.h"

namespace steep {

/// The type of input i of an operator of our own. Throws ShapeError unless it is there and a
/// float32 or float64 tensor of two dimensions or more (or an unknown number of them).
Type matrices_in(Node n, int i);

/// The same of square matrices; one extent that is known stands for both.
Type squares_in(Node n, int i);

/// The type of x in a x = b, where a's matrices are input i and b's are input j: stacks broadcast.
/// Throws ShapeError where they do not fit.
Type solution_of(Node n, int i, int j);

/// A type of the stack alone, without the last `axes` axes of `type`, of another dtype.
Type stack_of(const Type& type, int64_t axes, DType dtype);

/// The identity matrix of the size of square matrices, [n, n], in their dtype.
Value identity_for(Value squares);

}  // namespace steep
