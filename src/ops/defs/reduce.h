// What the reductions share: ReduceX(x, axes?){keepdims, noop_with_empty_axes}, opset 18 and later.
#pragma once

#include "ops/build.h"

namespace steep {

/// The rank of a result, which ONNX's inference leaves open where axes are no constants.
void reduce_refine(Node n);

inline const std::initializer_list<Attribute> kReduceAttributes = {{"keepdims", 1},
                                                                   {"noop_with_empty_axes", 0}};

/// `v`, of the shape of reduction n's output, with the reduced axes back at extent 1: ready to
/// broadcast to x.
Value with_reduced_axes(Node n, Value v);

/// Another reduction of `x` (of n's input shape) over n's axes, which stay at extent 1.
Value reduce_alike(Node n, std::string op, Value x);

/// How many elements of x go into one of reduction n's output, a scalar of x's dtype.
Value reduced_count(Node n);

/// Product of the extents of `x` along `axes`, a scalar of x's dtype: a constant where the extents
/// are known.
Value extent_product(Value x, const Ints& axes);

}  // namespace steep
