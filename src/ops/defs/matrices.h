// Shared by the rules of linear algebra: Steep's own operators on stacks of matrices. The matrices
// are the last two axes of an operand.
#pragma once

#include <string>

#include "ops/build.h"

namespace steep {

/// The type of input i of one of Steep's own operators. Throws ShapeError unless the input is
/// present and a float32 or float64 tensor of rank 2 or more (or of unknown rank).
Type matrices_in(Node n, int i);

/// As matrices_in(), for square matrices; one known extent determines the other.
Type squares_in(Node n, int i);

/// The type of x in a x = b, where input i holds a and input j holds b. Leading axes broadcast.
/// Throws ShapeError when the shapes do not fit.
Type solution_of(Node n, int i, int j);

/// The type with `dtype` that has the leading axes of `type`, without its last `axes` axes.
Type stack_of(const Type& type, int64_t axes, DType dtype);

/// The identity matrix [n, n] with the size and dtype of the given square matrices.
Value identity_for(Value squares);

}  // namespace steep
