// Rules for OpDef::simplify.
#pragma once

#include "ops/build.h"

namespace steep {

bool provably_same_type(Value a, Value b);

/// Input 0, where the result is of its type: of operators that change nothing else.
Value input_if_same_type(Node n);
/// The input of a sum, or of its like, that has but one.
Value input_if_only_one(Node n);
/// The other input, where input 1 is the number `neutral`; or input 0, where `commutes`.
Value beside_neutral(Node n, double neutral, bool commutes);

}  // namespace steep
