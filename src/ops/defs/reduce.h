// Shared by the reductions: ReduceX(x, axes?){keepdims, noop_with_empty_axes}, opset 18 and later.
#pragma once

#include "ops/build.h"

namespace steep {

/// Sets the rank of a result, which ONNX's inference leaves open where the axes are not constant.
void reduce_refine(Node n);

inline const std::initializer_list<Attribute> kReduceAttributes = {{"keepdims", 1},
                                                                   {"noop_with_empty_axes", 0}};

/// `v` has the shape of reduction n's output. Returns it with the reduced axes as extents of 1, so
/// that it broadcasts to x.
Value with_reduced_axes(Node n, Value v);

/// Reduces `x` (with n's input shape) over n's axes with `op`, keeping the axes as extents of 1.
Value reduce_alike(Node n, std::string op, Value x);

/// The number of elements of x per element of n's output, a scalar of x's dtype.
Value reduced_count(Node n);

/// Product of the extents of `x` along `axes`, a scalar of x's dtype: a constant where the extents
/// are known.
Value extent_product(Value x, const Ints& axes);

}  // namespace steep
