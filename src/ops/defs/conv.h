// Convolutions and the two other products of the same three arrays: with y = Conv(x, w) the form
// <dy, Conv(x, w)> is linear in each of dy, x and w, so that the gradients of all three operators
// are again operators of this family.
#pragma once

#include "ops/op_def.h"

namespace steep {

inline const std::initializer_list<Attribute> kConvAttributes = {
    {"allow_bf16", 0}, {"auto_pad", "NOTSET"}, {"group", 1}};

/// What ONNX's Conv and our ConvGrad operators have in common: strides, dilations, group, pads,
/// auto_pad.
Attrs conv_attrs(const Attrs& attrs);

Value conv(Value x, Value w, const Attrs& attrs);
/// The gradient for x of Conv(x, w), x being of shape `shape`.
Value conv_grad_input(Value dy, Value w, Value shape, const Attrs& attrs);
/// The gradient for w of Conv(x, w), w being of shape `shape`.
Value conv_grad_weight(Value dy, Value x, Value shape, const Attrs& attrs);

/// Settings of a convolution with their defaults, auto_pad written out.
struct ConvWindow {
  int64_t rank;
  Ints strides{}, dilations{}, pads{};

  /// `x` and `w` are the shapes of the convolution's operands. Throws ModelError where the pads
  /// depend on unknown extents.
  ConvWindow(Node n, const Shape& x, const Shape& w);
};

/// Convolutions keep the rank, which ONNX's functions do not say where extents are unknown.
void conv_refine(Node n);

/// Sum over all axes but the second.
Value sum_per_channel(Value x);

}  // namespace steep
