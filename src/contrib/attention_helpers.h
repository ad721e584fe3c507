// What Attention and MultiHeadAttention share: masks, and attention of heads.
#pragma once

#include <optional>
#include <string>

#include "contrib/contrib.h"

namespace steep {

/// Names of values, each [B, heads, rows, columns].
struct Heads {
  std::string q, k, v;
};

/// By input of the call; -1 for an operator without it.
struct MaskInputs {
  int padding = -1;           ///< int32: which keys count
  int bias = -1;              ///< added to the scores, [B or 1, heads or 1, S, T]
  bool past = false;          ///< keys of earlier calls stand before the first query's own
  std::optional<Dim> keys{};  ///< how many a padding of one column may stand for; any: as no mask
};

/// Adds values of those names: whole heads of a matrix, [B, rows, heads, size] and, as
/// "each_<name>", [B, heads, rows, size]. `outside` is the name of the shape [B, rows].
void add_heads(ContribBody& f, const std::string& name, const std::string& matrix,
               const std::string& outside, int64_t heads, int64_t size);

/// Adds softmax(scale · q kᵀ + masks) v as "y" [B, S, heads · columns of v], where a key that does
/// not count has mask_filter_value added to its score, and those behind a query, where
/// `unidirectional`, have no part at all. The attributes of these names are the call's; `scale` is
/// 1 / √size where that is 0, and `size` the columns of q. `batch` is B. Returns the name of the
/// scores, [B, heads, S, T], masks included.
std::string add_attention(const ContribCall& c, ContribBody& f, const Heads& heads, int64_t size,
                          const Dim& batch, const MaskInputs& masks);

/// Throws ModelError naming the input, or the output, where it is there.
void refuse_input(const ContribCall& c, size_t input, const char* remedy);
void refuse_output(const ContribCall& c, size_t output, const char* remedy);

}  // namespace steep
