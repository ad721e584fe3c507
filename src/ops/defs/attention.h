// Helpers of steep.Attention and steep.AttentionGrad: both see their operands as [B, H, S, D]
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

/// `x`, transposed by the attribute `perm`; `x` itself when the attribute is absent.
Value attention_permuted(Node n, Value x, std::string_view perm);
Shape attention_permuted(Node n, const Shape& shape, std::string_view perm);
/// The shape [B, H, S, D] of input i, transposed by the attribute `perm`; absent when its rank is
/// unknown. Throws ShapeError unless there are four dimensions and the permutation fits.
std::optional<Shape> attention_shape(Node n, int i, std::string_view perm);

/// scale q kᵀ with masks. `first` is the index of n's bias input; keep and seed follow it.
Value attention_scores(Node n, Value q, Value k, int first);
/// `p` after dropout, if n has a seed.
Value attention_dropout(Node n, Value p, int first);
/// f32 for 16-bit types, whose sums would lose too much precision; otherwise x's dtype.
DType attention_precision(Value x);

}  // namespace steep
