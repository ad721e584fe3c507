// Rules for OpDef::simplify.
#pragma once

#include "ops/build.h"

namespace steep {

bool provably_same_type(Value a, Value b);

/// Input 0 when the result has its type. For operators that then return it unchanged.
Value input_if_same_type(Node n);
/// The input of a sum or similar operator that has only one input.
Value input_if_only_one(Node n);
/// Input 0 when input 1 is the number `neutral`; if `commutes`, also input 1 when input 0 is.
Value beside_neutral(Node n, double neutral, bool commutes);

}  // namespace steep
