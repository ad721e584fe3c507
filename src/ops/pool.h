// What the pooling operators share.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// Extents of a pooling of x by n's attributes, where they are known.
std::optional<Shape> pooled_shape(Node n, Value x);

}  // namespace steep
