// What the pooling operators share.
#pragma once

#include "ops/op_def.h"

namespace steep {

// Of an operator and of its gradient.
inline const std::initializer_list<Attribute> kMeanPoolAttributes = {
    {"auto_pad", "NOTSET"}, {"ceil_mode", 0}, {"count_include_pad", 0}};
inline const std::initializer_list<Attribute> kMaxPoolAttributes = {
    {"auto_pad", "NOTSET"}, {"ceil_mode", 0}, {"storage_order", 0}};

/// Extents of a pooling of x by n's attributes, where they are known.
std::optional<Shape> pooled_shape(Node n, Value x);

}  // namespace steep
