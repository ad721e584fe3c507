// Finds the tiles of scores that the masks of attention hide. Each mask is read once, tile by tile.

#include "providers/cpu/attention_masks.h"

#include <limits>

#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/attention_masks.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {
namespace {

/// The effect of keep and bias on one row of a tile.
struct RowMask {
  float limit = 0;   // upper limit of what they add or replace scores by; NaN if any is NaN
  bool open = true;  // they leave all scores unchanged
};

void read_bias(const float* bias, size_t n, RowMask& row) {
  const Floats d;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto most = lowest;
  auto odd = hn::Zero(d), nan = hn::Zero(d);  // lanes past the end hold zeros
  for_each_vector(d, bias, n, [&](VecF v, size_t, size_t count) HWY_ATTR {
    most = hn::Max(most, hn::IfThenElse(hn::FirstN(d, count), v, lowest));
    odd = hn::IfThenElse(hn::Eq(v, hn::Zero(d)), odd, hn::Set(d, 1.0F));
    nan = hn::IfThenElse(hn::Eq(v, v), nan, v);
  });
  row.limit += hn::GetLane(hn::MaxOfLanes(d, most)) + hn::GetLane(hn::SumOfLanes(d, nan));
  row.open = row.open && hn::GetLane(hn::MaxOfLanes(d, odd)) == 0;
}

RowMask read_row(const AttentionProblem& p, const AttentionArrays& a, const Tile& t, int64_t r) {
  RowMask row;
  if (p.keep.present) {
    const uint8_t* keep = keep_row(p, a.keep, t, r);
    const int64_t n = p.keep.column == 0 ? 1 : t.columns;
    const int64_t shut = std::count(keep, keep + n, 0);
    row.open = shut == 0;
    if (shut == n) row.limit = p.masked;
  }
  if (p.bias.present) {
    const int64_t n = p.bias.column == 0 ? 1 : t.columns;
    read_bias(bias_row(p, a.bias, t, r), static_cast<size_t>(n), row);
  }
  return row;
}

TileMask read_tile(const AttentionProblem& p, const AttentionArrays& a, const Tile& t) {
  bool open = true, low = true, shut = true;
  const bool alike = p.keep.heads.row == 0 && p.bias.heads.row == 0;
  for (int64_t r = 0; r < (alike ? 1 : t.rows) && (open || low); ++r) {
    const RowMask row = read_row(p, a, t, r);
    open = open && row.open;
    low = low && row.limit <= kMasked;
    shut = shut && row.limit == -std::numeric_limits<float>::infinity();
  }
  if (open) return TileMask::open;
  if (!low) return TileMask::partly;
  return shut ? TileMask::shut : TileMask::low;
}

}  // namespace

/// Reads rows [begin, end) of blocks.
void read_mask_rows(const AttentionProblem& p, const AttentionArrays& a, int64_t begin, int64_t end,
                    uint8_t* states) {
  constexpr int64_t kBlock = MaskBlocks::kBlock;
  const int64_t heads = MaskBlocks::by_head(p) ? p.heads : 1;
  const int64_t down = MaskBlocks::blocks(p.queries), across = MaskBlocks::blocks(p.keys);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t plane = row / down, i = row % down * kBlock;
    for (int64_t block = 0; block < across; ++block) {
      const int64_t j = block * kBlock;
      const Tile t{plane / heads,
                   plane % heads,
                   i,
                   std::min(kBlock, p.queries - i),
                   j,
                   std::min(kBlock, p.keys - j)};
      states[row * across + block] = static_cast<uint8_t>(read_tile(p, a, t));
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(read_mask_rows);

}  // namespace

void read_masks(const AttentionProblem& p, const AttentionArrays& a, uint8_t* states) {
  constexpr int64_t kElements = 1 << 16;  // enough work for one thread
  parallel_for(MaskBlocks::rows(p), grain_of(kElements, MaskBlocks::kBlock * p.keys),
               [&](int64_t begin, int64_t end) {
                 HWY_DYNAMIC_DISPATCH(read_mask_rows)(p, a, begin, end, states);
               });
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
