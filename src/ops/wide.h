// Arithmetic of 16 bits is done in float32. A rule or a decomposition has several steps, between
// which float16 would overflow beyond 65,504 (a count, a square, a sum) and bfloat16 would keep 8
// bits; PyTorch computes an operator in float32 and rounds the result; so does Steep. Rules of
// operators that only move elements, and of products, are used unchanged.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// float16 or bfloat16
bool is_half(DType dtype);

/// Has the node operands or results of 16 bits, so that its steps are to be in float32?
bool needs_float32(Node n);

/// The node's outputs by the same operator in float32, cast back; null where the node has none.
/// REQUIRES: needs_float32().
std::vector<Value> in_float32(Node n);

/// What the rule of n's operator gives. Where needs_float32(), all of it is of float32, and results
/// that the rule reads are those that are stored, or, of a few operators, new ones. REQUIRES: there
/// is a rule.
Grads apply_rule(Node n, const Grads& dy, Differentiate differentiate);

/// `dx`, which apply_rule() gave for n's operand x, summed to x's shape and of its dtype. Throws
/// InternalError when the rule returned another dtype than it was to.
Value gradient_for(Node n, Value dx, Value x);

}  // namespace steep
