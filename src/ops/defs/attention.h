// What steep.Attention and steep.AttentionGrad share: both see their operands as [B, H, S, D]
// heads.
#pragma once

#include <limits>

#include "ops/defs/dropout.h"

namespace steep {

inline const std::initializer_list<Attribute> kAttentionAttributes = {
    {"causal", 0},   {"masked", -std::numeric_limits<double>::infinity()},
    kRatio,          {"scale", 1.0},
    kStream,         {"zero_nan", 0},
    {"zero_shut", 0}};

/// `x` under attrs()[perm]; `x` itself where the attribute is absent.
Value attention_permuted(Node n, Value x, std::string_view perm);
Shape attention_permuted(Node n, const Shape& shape, std::string_view perm);
/// [B, H, S, D] of input i under attrs()[perm], or absent when its rank is not known. Throws
/// ShapeError unless there are four dimensions and the permutation fits.
std::optional<Shape> attention_shape(Node n, int i, std::string_view perm);

/// scale q kᵀ with masks. `first` is the input of n that is the bias; keep and seed follow it.
Value attention_scores(Node n, Value q, Value k, int first);
/// `p` after dropout, if n has a seed.
Value attention_dropout(Node n, Value p, int first);
/// f32 for the half-width types, whose sums would lose too much; else x's own.
DType attention_precision(Value x);

}  // namespace steep
