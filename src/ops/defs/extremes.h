// What Max and Min share.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// The gradient of an elementwise extreme of several inputs. Inputs that attain the extreme share
/// the gradient equally; where the extreme is NaN each input gets all of it, as in PyTorch.
Grads extreme_vjp(Node n, const Grads& dy);

}  // namespace steep
