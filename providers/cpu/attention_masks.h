// Finds the tiles of attention's scores that masks hide completely.
//
// It reads the values of the masks at each run, so padding, windows and packed documents need no
// special cases. Masks are read once for all heads that share them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "providers/cpu/attention.h"

namespace steep::cpu {

/// Scores of `rows` queries from `i` on and `columns` keys from `j` on, in one head.
struct Tile {
  int64_t b, h, i, rows, j, columns;
};

/// What masks do to the scores of a tile.
enum class TileMask : uint8_t {
  open,    ///< nothing
  partly,  ///< something else
  low,     ///< they put kMasked or less upon each, or in its place
  shut,    ///< they make each -inf
};

inline constexpr float kMasked = -1e30F, kOrdinary = -1e20F;

/// Whether each row of a `low` or `shut` tile has another score that counts. `known` holds a score
/// that the row has, such as its maximum so far. Then every probability of the tile is 0:
///
/// With the row's maximum, max ≥ known > kOrdinary = -1e20. A score of the tile is kMasked = -1e30
/// or less where the mask takes its place, and s - 1e30 or less where the mask is added to
/// s = scale q·k. For s < 9e29 in both cases score - max < -1e29 + 1e20 < -104, and exp is exactly
/// 0 in float32 from there on. Its gradient is 0 (dp - delta) = 0. So sums, results and gradients
/// have no term of the tile, to the bit. Of s from 9e29 on, infinite or NaN, nothing is said: such
/// a key is left out although it would count. Numbers that hide less, such as -10,000, are above
/// kMasked, so that their scores are computed.
inline bool has_other_scores(const Tile& t, const float* known) {
  return std::all_of(known, known + t.rows, [](float score) { return score > kOrdinary; });
}

/// The masks of an attention by tiles of kBlock queries and kBlock keys.
class MaskBlocks {
 public:
  static constexpr int64_t kBlock = 64;

  /// `states`: bytes(p) bytes that read_masks() has filled.
  MaskBlocks(const AttentionProblem& p, const uint8_t* states) : p_(p), states_(states) {}

  static int64_t blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }
  /// Does what keep and bias say depend on the batch entry, or the head?
  static bool by_batch(const AttentionProblem& p) {
    return p.keep.heads.batch != 0 || p.bias.heads.batch != 0;
  }
  static bool by_head(const AttentionProblem& p) {
    return p.keep.heads.head != 0 || p.bias.heads.head != 0;
  }
  /// Rows of blocks of all masks that differ: of batch entries, of heads in each, of queries in
  /// each; 0 where no mask is an operand.
  static int64_t rows(const AttentionProblem& p) {
    if (!p.keep.present && !p.bias.present) return 0;
    return (by_batch(p) ? p.batch : 1) * (by_head(p) ? p.heads : 1) * blocks(p.queries);
  }
  static int64_t bytes(const AttentionProblem& p) { return rows(p) * blocks(p.keys); }

  TileMask of(const Tile& t) const {
    if (p_.causal && t.j > t.i + t.rows - 1) return TileMask::shut;
    TileMask mask = TileMask::open;
    if (p_.keep.present || p_.bias.present) {
      const int64_t b = by_batch(p_) ? t.b : 0, h = by_head(p_) ? t.h : 0;
      const int64_t plane = b * (by_head(p_) ? p_.heads : 1) + h;
      const int64_t row = plane * blocks(p_.queries) + t.i / kBlock;
      mask = static_cast<TileMask>(states_[row * blocks(p_.keys) + t.j / kBlock]);
    }
    const bool on_diagonal = p_.causal && t.j + t.columns - 1 > t.i;
    return mask == TileMask::open && on_diagonal ? TileMask::partly : mask;
  }

 private:
  const AttentionProblem& p_;
  const uint8_t* states_;
};

/// Reads the masks, if there are any: MaskBlocks::bytes(p) bytes.
void read_masks(const AttentionProblem& p, const AttentionArrays& a, uint8_t* states);

}  // namespace steep::cpu
