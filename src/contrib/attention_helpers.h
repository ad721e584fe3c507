// Shared by Attention and MultiHeadAttention: masks, and attention over heads.
#pragma once

#include <optional>
#include <string>

#include "contrib/contrib.h"

namespace steep {

/// Names of values with shape [B, heads, rows, columns].
struct Heads {
  std::string q, k, v;
};

/// Indices of inputs of the call; -1 when the operator does not have the input.
struct MaskInputs {
  int padding = -1;           ///< int32: which keys count
  int bias = -1;              ///< added to the scores, [B or 1, heads or 1, S, T]
  bool past = false;          ///< keys of earlier calls precede those of this call
  std::optional<Dim> keys{};  ///< number of keys; none: a mask of one column does not count
};

/// Splits `matrix` into heads: adds `name`, [B, rows, heads, size], and "each_<name>", [B, heads,
/// rows, size]. `outside`: name of the shape [B, rows].
void add_heads(ContribBody& f, const std::string& name, const std::string& matrix,
               const std::string& outside, int64_t heads, int64_t size);

/// Adds "y" [B, S, heads · columns of v] = softmax(scale · q kᵀ + masks) v. Hidden keys have
/// mask_filter_value added to their scores; with `unidirectional`, keys after the query have
/// probability 0. These attributes are read from the call; a `scale` of 0 means 1 / √size, where
/// `size` is the number of columns of q. `batch` is B. Returns the name of the masked scores, [B,
/// heads, S, T].
std::string add_attention(const ContribCall& c, ContribBody& f, const Heads& heads, int64_t size,
                          const Dim& batch, const MaskInputs& masks);

/// Throws ModelError with the name of the input, or the output, if it is present.
void refuse_input(const ContribCall& c, size_t input, const char* remedy);
void refuse_output(const ContribCall& c, size_t output, const char* remedy);

}  // namespace steep
