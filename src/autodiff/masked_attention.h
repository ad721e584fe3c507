// Finds attention with masked scores, and the keys that its masks hide.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"
#include "ir/readers.h"
#include "ops/pattern.h"

namespace steep {

/// A mask of scores: `added` is added to them, or `otherwise` replaces them where `keep` is false
/// (true if `inverted`).
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
  Value seen;  ///< float32[sequences, keys]: 1 where a query sees the key; null: unknown
  int queries = -1, keys = -1;                       ///< ids of token spaces
  bool left = false, right = false, values = false;  ///< whether the operand's axes are known
};

/// The attention around a Softmax; nothing when the node is no Softmax or the form is another.
std::optional<MaskedAttention> match_masked_attention(const Readers& readers, Node softmax);

/// The rows of its pattern tables.
std::vector<PatternRuleInfo> masked_attention_patterns();

/// float32[sequences, keys]: which keys a mask of [sequences, heads or 1, queries or 1, keys]
/// leaves visible to at least one query; null if that is unknown before the run. `alone`: it is the
/// only mask.
Value seen_through(const ScoreMask& mask, Value keys, bool alone);

/// Whether the mask may differ between batches: it depends on integer or boolean inputs, or on
/// float inputs with one entry per sequence, and not only on extents or weights.
bool reads_inputs(Value v, const Dim& sequences);

}  // namespace steep
