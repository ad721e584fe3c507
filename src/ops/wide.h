// Computes 16-bit operators in float32. A rule or a decomposition has several steps; between them
// float16 would overflow beyond 65,504 (a count, a square, a sum) and bfloat16 would keep only 8
// bits. PyTorch computes such an operator in float32 and rounds the result, and so does Steep.
// Products, and operators that only move elements, use their rules unchanged.
#pragma once

#include "ops/op_def.h"

namespace steep {

/// float16 or bfloat16
bool is_half(DType dtype);

/// Whether the node has 16-bit operands or results and its rule must run in float32.
bool needs_float32(Node n);

/// The node's outputs, computed by the same operator in float32 and cast back; null for absent
/// outputs. REQUIRES: needs_float32().
std::vector<Value> in_float32(Node n);

/// The gradients that the rule of n's operator gives. When needs_float32(), the rule runs in
/// float32 and reads the node's stored results, cast to float32; for a few operators it reads
/// results recomputed in float32. REQUIRES: the operator has a rule.
Grads apply_rule(Node n, const Grads& dy, Differentiate differentiate);

/// `dx`, which apply_rule() gave for n's operand x, summed to x's shape and cast to its dtype.
/// Throws InternalError when the dtype of `dx` is not the one the rule has to return.
Value gradient_for(Node n, Value dx, Value x);

}  // namespace steep
