// Shared by ScatterElements and ScatterND: y = data with updates written, or combined, at indices.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// How one of the two ops reads and writes at n's indices.
struct ScatterOps {
  Value (*read)(Node n, Value from);  ///< from[indices]
  Value (*write)(Node n, Value onto, Value updates,
                 const std::string& reduction);  ///< the op itself
};

/// Gradients of (data, indices, updates) for any `reduction`: none, add, mul, max, min. With "none"
/// the result and the gradient are undefined for duplicate indices.
Grads scatter_vjp(Node n, const Grads& dy, const ScatterOps& ops);

}  // namespace steep
