// Shared by the kernels of steep.Attention and steep.AttentionGrad.
#pragma once

#include <optional>
#include <string>

#include "providers/cpu/elementwise.h"
#include "providers/cpu/kernel.h"

namespace steep::cpu {

/// The distances, in elements, between batch entries, heads and rows of an operand; columns are
/// adjacent.
struct HeadStrides {
  int64_t batch = 0, head = 0, row = 0;

  int64_t at(int64_t b, int64_t h) const { return b * batch + h * head; }
};

/// A mask that broadcasts to [batch, head, query, key]; strides of 0 broadcast.
struct MaskStrides {
  bool present = false;
  HeadStrides heads{};
  int64_t column = 0;
};

struct AttentionProblem {
  int64_t batch, heads, queries, keys;
  int64_t width, value_width;              // of queries and keys, of values
  HeadStrides q, k, v, y, dy, dq, dk, dv;  // the last four for gradients only
  MaskStrides bias, keep;
  float scale = 1, masked = 0;
  bool causal = false, zero_nan = false, zero_shut = false;
  bool bf16 = false;  // dtype of q, k, v, y and their gradients
  bool random = false;
  DropoutParams dropout{};

  int64_t pairs() const { return batch * heads; }
};

/// Pointers of one execution. Masks and seed may be null.
struct AttentionArrays {
  const void *q, *k, *v;
  const float* bias;
  const uint8_t* keep;
  const int64_t* seed;
};
struct AttentionResults {
  void* y;
  float *maxima, *sums;
};
struct AttentionGradients {
  const void *dy, *y;
  const float *maxima, *sums;
  void *dq, *dk, *dv;
};

/// Reads a node of either operator. Returns nothing, and the reason in *why_not, when the tiles
/// cannot compute it.
std::optional<AttentionProblem> read_attention(const NodeSpec& node, std::string* why_not);

}  // namespace steep::cpu
