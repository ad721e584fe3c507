#pragma once

#include "ir/graph.h"

namespace steep {

/// The value that node `n` merely repeats, so that its readers can read that instead: identities,
/// reshapes and sums to the shape that is already there, casts to the same dtype, transposes that
/// move nothing, factors of one, choices already made. Null when the node does something.
/// REQUIRES: types inferred.
Value simplify(Node n);

}  // namespace steep
