// Attention whose scores are masked, and the keys that its masks hide.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"
#include "ir/readers.h"
#include "ops/pattern.h"

namespace steep {

/// What shuts keys out of scores: a number is added, or stands where `keep` is false.
struct ScoreMask {
  Value added{};
  Value keep{}, otherwise{};
  bool inverted = false;
};

/// scores = left right (MatMul), masked; Softmax; dropout; product = … values (MatMul). Heads are
/// [sequences, heads, tokens, k].
struct MaskedAttention {
  Node softmax, scores, product;
  std::vector<ScoreMask> masks;
  Value seen;  ///< float32[sequences, keys]: 1 where some query sees the key; null if not known
  int queries = -1, keys = -1;                       ///< spaces
  bool left = false, right = false, values = false;  ///< are these operands' axes known?
};

/// The attention of a Softmax; nothing where it is none of this form, and of other nodes.
std::optional<MaskedAttention> match_masked_attention(const Readers& readers, Node softmax);

/// What it matches.
std::vector<RowInfo> masked_attention_rows();

/// float32[sequences, keys]: which keys a mask of [sequences, heads or 1, queries or 1, keys] shows
/// to at least one query; null if it is not known before the run. `alone`: there are no other
/// masks.
Value seen_through(const ScoreMask& mask, Value keys, bool alone);

/// Whether the mask may differ from batch to batch: whether it depends on fed integers or booleans,
/// or on floats for each sequence, and not only on extents or weights.
bool reads_inputs(Value v, const Dim& sequences);

}  // namespace steep
