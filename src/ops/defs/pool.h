// Shared by the pooling operators.
#pragma once

#include "ops/op_def.h"

namespace steep {

// For an operator and for its gradient.
inline const std::initializer_list<Attribute> kMeanPoolAttributes = {
    {"auto_pad", "NOTSET"}, {"ceil_mode", 0}, {"count_include_pad", 0}};
inline const std::initializer_list<Attribute> kMaxPoolAttributes = {
    {"auto_pad", "NOTSET"}, {"ceil_mode", 0}, {"storage_order", 0}};

/// The shape of the pooling of x with n's attributes, as far as it is known.
std::optional<Shape> pooled_shape(Node n, Value x);

}  // namespace steep
