// Shared by the pooling operators over whole planes.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// All axes of x[N, C, ...] except the first two.
Ints spatial_axes(Value x);

}  // namespace steep
