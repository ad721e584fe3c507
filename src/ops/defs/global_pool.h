// What the poolings of whole planes share.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// All axes of x[N, C, ...] but the first two.
Ints spatial_axes(Value x);

}  // namespace steep
