// What Attention and MultiHeadAttention share: masks, and attention of heads.
#pragma once

#include <string>

#include "contrib/contrib.h"

namespace steep {

/// Names of values, each [B, heads, rows, columns].
struct Heads {
  std::string q, k, v;
};

/// By input of the call; -1 for an operator without it.
struct MaskInputs {
  int padding = -1;  ///< int32: which keys count
  int bias = -1;     ///< added to the scores, [B or 1, heads or 1, S, T]
};

/// Adds softmax(scale · q kᵀ + masks) v as "y" [B, S, heads · columns of v], where a key that does
/// not count has mask_filter_value added to its score, and those behind a query, where
/// `unidirectional`, have no part at all. The attributes of these names are the call's; `scale` is
/// 1 / √size where that is 0, and `size` the columns of q. `batch` is B.
void add_attention(const ContribCall& c, ContribBody& f, const Heads& heads, int64_t size,
                   const Dim& batch, const MaskInputs& masks);

/// Throws ModelError naming the inputs from `first` to `last`, or the outputs, that are there and
/// that hold keys and values of earlier calls.
void refuse_past(const ContribCall& c, int first, int last, int first_output);

}  // namespace steep
