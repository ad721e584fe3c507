// What operators of any number of operands share: Sum, Mean, Max, Min.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// op(x₁, x₂, …) as op(op(x₁, …), …) of a few operands each, in the same order: kernels have no
/// room for any number of them. Empty when there are but a few.
std::vector<Value> few_at_a_time(Node n);

}  // namespace steep
