// What ScatterElements and ScatterND share: y = data with updates written, or combined, at indices.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// How one of the two ops reads and writes at n's indices.
struct ScatterOps {
  Value (*read)(Node n, Value from);  ///< from[indices]
  Value (*write)(Node n, Value onto, Value updates,
                 const std::string& reduction);  ///< the op itself
};

/// Gradients of (data, indices, updates) under any `reduction`: none, add, mul, max, min. With
/// "none", duplicate indices have no defined winner, and no defined gradient.
Grads scatter_vjp(Node n, const Grads& dy, const ScatterOps& ops);

}  // namespace steep
