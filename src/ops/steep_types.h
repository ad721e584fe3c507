// Helpers for the type inference of Steep's own ops.
#pragma once

#include <string>

#include "ops/op_def.h"

namespace steep {

/// The shape that the value `shape` (int64[r]) holds, as far as it is known; absent when r is
/// unknown.
std::optional<Shape> shape_in(Value shape);

/// `x`'s shape, absent when its rank is unknown (Value::shape() throws then).
const std::optional<Shape>& shape_if_known(Value x);

/// The shape to which a and b broadcast (NumPy's rules). Throws ShapeError with n's name when they
/// cannot.
Shape broadcast(Node n, const Shape& a, const Shape& b);

/// The common type of two possible types of a value: extents that differ become unknown.
Type either(const Type& a, const Type& b);

/// The type without the symbols of unknown extents. These symbols are valid only inside a loop
/// body, because the extents may differ between iterations.
Type without_symbols(Type type);

/// Sets the rank of an output whose shape is input 1, also when input 1 is computed: the length of
/// input 1, but at least `least`.
void refine_rank(Node n, int64_t least);

/// Throws ShapeError unless input i has `rank` dimensions (or an unknown number of them).
void require_rank(Node n, int i, int64_t rank);

/// Throws ShapeError unless the node has exactly `inputs` inputs and at most `outputs` outputs. For
/// operators that occur in files.
void require_operands(Node n, int inputs, int outputs);

/// The attribute `dtype` where it is set, else `otherwise`.
DType result_dtype(Node n, DType otherwise);

[[noreturn]] void throw_shape_error(Node n, std::string what, std::string expected,
                                    std::string received);

}  // namespace steep
