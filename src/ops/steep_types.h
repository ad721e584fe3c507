// What the type inference of Steep's own ops shares.
#pragma once

#include <string>

#include "ops/op_def.h"

namespace steep {

/// The shape that `shape` (int64[r]) holds, as far as it is known; absent when not even r is.
std::optional<Shape> shape_in(Value shape);

/// `x`'s shape, or absent when its rank is not known (Value::shape() throws then).
const std::optional<Shape>& shape_if_known(Value x);

/// NumPy's common shape of a and b. Throws ShapeError naming n when they cannot broadcast.
Shape broadcast(Node n, const Shape& a, const Shape& b);

/// The type of a value that is of the one type or the other: extents that differ are not known.
Type either(const Type& a, const Type& b);

/// The types without symbols for unknown extents. Outside of a loop body these symbols mean
/// nothing, since the extents may differ between iterations.
Type without_symbols(Type type);

/// The rank of a result whose shape input 1 holds, computed though it be: as long as that is, and
/// `least` at least.
void refine_rank(Node n, int64_t least);

/// Throws ShapeError unless input i has `rank` dimensions (or an unknown number of them).
void require_rank(Node n, int i, int64_t rank);

/// Throws ShapeError unless the node has so many inputs, and so many outputs at most: of operators
/// that files hold.
void require_operands(Node n, int inputs, int outputs);

/// The attribute `dtype` where it is set, else `otherwise`.
DType result_dtype(Node n, DType otherwise);

[[noreturn]] void throw_shape_error(Node n, std::string what, std::string expected,
                                    std::string received);

}  // namespace steep
