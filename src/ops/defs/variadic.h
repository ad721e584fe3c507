// Shared by operators with any number of operands: Sum, Mean, Max, Min.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// op(x₁, x₂, …) as op(op(x₁, …), …) with a few operands each, in the same order, because kernels
/// have a limited number of operands. Empty when there are few operands.
std::vector<Value> few_at_a_time(Node n);

}  // namespace steep
