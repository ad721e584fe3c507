// What Max and Min share.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// Gradient of an elementwise extreme of several inputs: those that attain it share it equally, and
/// each has all of it where the extreme is NaN, as in PyTorch.
Grads extreme_vjp(Node n, const Grads& dy);

}  // namespace steep
