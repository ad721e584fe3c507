// Finds the tiles of attention's scores that masks hide completely.
//
// It reads the values of the masks in each run, so padding, windows and packed documents need no
// special cases. A mask that several heads share is read once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "providers/cpu/attention.h"

namespace steep::cpu {

/// The scores of `rows` queries from `i` on and `columns` keys from `j` on, in one head.
struct Tile {
  int64_t b, h, i, rows, j, columns;
};

/// The effect of the masks on the scores of a tile.
enum class TileMask : uint8_t {
  open,    ///< no effect
  partly,  ///< any other effect
  low,     ///< each score is replaced by kMasked or less, or such a number is added
  shut,    ///< each score becomes -inf
};

inline constexpr float kMasked = -1e30F, kOrdinary = -1e20F;

/// Whether each row of a `low` or `shut` tile has another score that is not masked. `scores` holds
/// one score of each row, such as its maximum so far. If so, every probability of the tile is 0:
///
/// With the row's maximum, max ≥ score > kOrdinary = -1e20. A score of the tile is at most kMasked
/// = -1e30 if the mask replaces it, and at most s - 1e30 if the mask is added to s = scale q·k. For
/// s < 9e29 both give score - max < -1e29 + 1e20 < -104, and exp of that is exactly 0 in float32.
/// The gradient is 0 (dp - delta) = 0. So sums, results and gradients have no term from the tile,
/// bit for bit. If s is 9e29 or more, infinite or NaN, the key is left out although it would count.
/// Masks of smaller magnitude, such as -10,000, are above kMasked, so their scores are computed.
inline bool has_other_scores(const Tile& t, const float* scores) {
  return std::all_of(scores, scores + t.rows, [](float score) { return score > kOrdinary; });
}

/// The masks of an attention, in blocks of kBlock queries and kBlock keys.
class MaskBlocks {
 public:
  static constexpr int64_t kBlock = 64;

  /// `states`: bytes(p) bytes that read_masks() has written.
  MaskBlocks(const AttentionProblem& p, const uint8_t* states) : p_(p), states_(states) {}

  static int64_t blocks(int64_t n) { return (n + kBlock - 1) / kBlock; }
  /// Whether keep or bias depend on the batch entry, or on the head.
  static bool by_batch(const AttentionProblem& p) {
    return p.keep.heads.batch != 0 || p.bias.heads.batch != 0;
  }
  static bool by_head(const AttentionProblem& p) {
    return p.keep.heads.head != 0 || p.bias.heads.head != 0;
  }
  /// The number of rows of blocks over all distinct masks: batch entries × heads × blocks of
  /// queries; 0 without masks.
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

/// Reads the masks, if there are any, and writes MaskBlocks::bytes(p) bytes to `states`.
void read_masks(const AttentionProblem& p, const AttentionArrays& a, uint8_t* states);

}  // namespace steep::cpu
