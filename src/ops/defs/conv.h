// Convolutions and the two other products of the same three arrays. With y = Conv(x, w) the form
// <dy, Conv(x, w)> is linear in each of dy, x and w, so the gradients of all three operators are
// again operators of this family.
#pragma once

#include "ops/op_def.h"

namespace steep {

inline const std::initializer_list<Attribute> kConvAttributes = {
    {"allow_bf16", 0}, {"auto_pad", "NOTSET"}, {"group", 1}};

/// The attributes that ONNX's Conv and steep's ConvGrad operators share: strides, dilations, group,
/// pads, auto_pad.
Attrs conv_attrs(const Attrs& attrs);

Value conv(Value x, Value w, const Attrs& attrs);
/// The gradient of Conv(x, w) for x, which has shape `shape`.
Value conv_grad_input(Value dy, Value w, Value shape, const Attrs& attrs);
/// The gradient of Conv(x, w) for w, which has shape `shape`.
Value conv_grad_weight(Value dy, Value x, Value shape, const Attrs& attrs);

/// The settings of a convolution with defaults filled in and auto_pad resolved to pads.
struct ConvWindow {
  int64_t rank;
  Ints strides{}, dilations{}, pads{};

  /// `x` and `w` are the shapes of the convolution's operands. Throws ModelError where the pads
  /// depend on unknown extents.
  ConvWindow(Node n, const Shape& x, const Shape& w);
};

/// Sets the rank of the result, which ONNX's functions leave open where extents are unknown.
void conv_refine(Node n);

/// Sum over all axes but the second.
Value sum_per_channel(Value x);

}  // namespace steep
