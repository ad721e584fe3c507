// Tiles of attention: packing, products of small matrices, masks and dropout for one tile of
// scores. Included once per target. A tile fits in the second-level cache, a panel of it in the
// first-level cache.
//
// Every element of a product is one sum in order of depth, independent of the tile. So results do
// not depend on how work is split between threads.
#include <algorithm>
#include <limits>

#include "providers/cpu/attention.h"
#include "providers/cpu/attention_masks.h"
#include "providers/cpu/philox-inl.h"
#include "providers/cpu/softmax_rows-inl.h"

#if defined(STEEP_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_ATTENTION_TILES_INL_H_
#undef STEEP_ATTENTION_TILES_INL_H_
#else
#define STEEP_ATTENTION_TILES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

// --- products ------------------------------------------------------------------------------------

/// A block of the result is kBlockRows rows by up to kBlockVectors vectors: as many sums as fit
/// into the registers beside the operands.
constexpr size_t kBlockRows = 6;
constexpr size_t kBlockVectors = HWY_MAX_BYTES == 64 ? 4 : 2;

/// What happens to the old elements of the result.
enum class Old : uint8_t { overwrite, add, scale };

/// c (+)= a b. a[i, k] lies at a + i * a_row + k * a_depth; b and c have adjacent columns.
struct Product {
  size_t depth;
  const float* a;
  size_t a_row, a_depth;
  const float* b;
  size_t b_row;
  float* c;
  size_t c_row;
  Old old = Old::overwrite;
  const float* factors = nullptr;  // for the old rows, with Old::scale
};

template <size_t kRows, size_t kVectors>
HWY_INLINE void multiply_block(const Product& p, size_t row, size_t column) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  VecF sum[kRows][kVectors];
  float* c = p.c + row * p.c_row + column;
  HWY_UNROLL(8)
  for (size_t i = 0; i < kRows; ++i) {
    const auto factor = hn::Set(d, p.old == Old::scale ? p.factors[row + i] : 1.0F);
    HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) {
      sum[i][v] = hn::Zero(d);
      if (p.old == Old::add) sum[i][v] = hn::LoadU(d, c + i * p.c_row + v * lanes);
      if (p.old == Old::scale) {
        sum[i][v] = hn::Mul(factor, hn::LoadU(d, c + i * p.c_row + v * lanes));
      }
    }
  }
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + column;
  for (size_t k = 0; k < p.depth; ++k, a += p.a_depth, b += p.b_row) {
    VecF operand[kVectors];
    HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) operand[v] = hn::LoadU(d, b + v * lanes);
    HWY_UNROLL(8)
    for (size_t i = 0; i < kRows; ++i) {
      const auto factor = hn::Set(d, a[i * p.a_row]);
      HWY_UNROLL(8)
      for (size_t v = 0; v < kVectors; ++v) {
        sum[i][v] = hn::MulAdd(factor, operand[v], sum[i][v]);
      }
    }
  }
  HWY_UNROLL(8)
  for (size_t i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[i][v], d, c + i * p.c_row + v * lanes);
  }
}

template <size_t kVectors>
HWY_INLINE void multiply_panel(const Product& p, size_t rows, size_t column) {
  size_t i = 0;
  for (; i + kBlockRows <= rows; i += kBlockRows)
    multiply_block<kBlockRows, kVectors>(p, i, column);
  switch (rows - i) {
    case 5: return multiply_block<5, kVectors>(p, i, column);
    case 4: return multiply_block<4, kVectors>(p, i, column);
    case 3: return multiply_block<3, kVectors>(p, i, column);
    case 2: return multiply_block<2, kVectors>(p, i, column);
    case 1: return multiply_block<1, kVectors>(p, i, column);
    default: return;
  }
}

/// Rows of b and c are whole vectors: `columns` is rounded up to a multiple of the lanes.
HWY_NOINLINE inline void multiply(const Product& p, size_t rows, size_t columns) {
  const size_t lanes = hn::Lanes(Floats());
  size_t j = 0;
  for (; j + kBlockVectors * lanes <= columns; j += kBlockVectors * lanes) {
    multiply_panel<kBlockVectors>(p, rows, j);
  }
  if (j >= columns) return;
  switch ((columns - j + lanes - 1) / lanes) {
    case 1: return multiply_panel<1>(p, rows, j);
    case 2: return multiply_panel<2>(p, rows, j);
    case 3: return multiply_panel<3>(p, rows, j);
    default: return multiply_panel<4>(p, rows, j);
  }
}

// --- packing -------------------------------------------------------------------------------------

HWY_INLINE size_t whole_vectors(int64_t n) {
  const size_t lanes = hn::Lanes(Floats());
  return (static_cast<size_t>(n) + lanes - 1) / lanes * lanes;
}

/// Takes the next `count` rows from a thread's scratch, of which *floats are in use. With a null
/// `scratch` it only counts, and returns null.
HWY_INLINE float* take_floats(float* scratch, int64_t count, size_t row_floats, size_t* floats) {
  float* const part = scratch == nullptr ? nullptr : scratch + *floats;
  *floats += whole_vectors(count * static_cast<int64_t>(row_floats));
  return part;
}

/// The random generator of a run; not used when `seed` is null.
HWY_INLINE Philox random_of(const AttentionProblem& p, const int64_t* seed) {
  constexpr int64_t kNoSeed[2] = {};
  return Philox(seed == nullptr ? kNoSeed : seed, p.dropout.stream);
}

HWY_INLINE VecF load_row(Floats d, const void* x, size_t at, size_t count, bool bf16) {
  if (!bf16) return load_n(d, static_cast<const float*>(x) + at, count);
  const hn::Rebind<uint16_t, Floats> d16;
  const hn::RebindToUnsigned<Floats> d32;
  const auto bits = load_n(d16, static_cast<const uint16_t*>(x) + at, count);
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

HWY_INLINE void store_row(Floats d, VecF v, void* x, size_t at, size_t count, bool bf16) {
  if (!bf16) return store_n(v, d, static_cast<float*>(x) + at, count);
  const hn::RebindToUnsigned<Floats> d32;
  const hn::RebindToSigned<Floats> i32;
  const hn::Rebind<uint16_t, Floats> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFF)));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  const auto word = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), quiet, rounded);
  const auto half = hn::DemoteTo(d16, hn::BitCast(i32, hn::ShiftRight<16>(word)));
  store_n(half, d16, static_cast<uint16_t*>(x) + at, count);
}

/// Converts rows of an operand to floats and multiplies them with a factor; pads the last vector of
/// each row with zeros.
HWY_NOINLINE inline void pack_rows(const void* x, size_t first, int64_t row_stride, int64_t rows,
                                   int64_t columns, bool bf16, float factor, float* to) {
  const Floats d;
  const size_t lanes = hn::Lanes(d), n = static_cast<size_t>(columns);
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < rows; ++i, first += static_cast<size_t>(row_stride)) {
    for (size_t j = 0; j < n; j += lanes, to += lanes) {
      const auto v = n - j >= lanes && !bf16
                         ? hn::LoadU(d, static_cast<const float*>(x) + first + j)
                         : load_row(d, x, first + j, std::min(lanes, n - j), bf16);
      hn::StoreU(hn::Mul(factors, v), d, to);
    }
  }
}

/// The reverse of pack_rows(): writes rows of a tile, times a factor, to an operand.
HWY_NOINLINE inline void unpack_rows(const float* from, int64_t rows, int64_t columns, bool bf16,
                                     float factor, void* x, size_t first, int64_t row_stride) {
  const Floats d;
  const size_t lanes = hn::Lanes(d), n = static_cast<size_t>(columns);
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < rows; ++i, first += static_cast<size_t>(row_stride)) {
    for (size_t j = 0; j < n; j += lanes, from += lanes) {
      store_row(d, hn::Mul(factors, hn::LoadU(d, from)), x, first + j, std::min(lanes, n - j),
                bf16);
    }
  }
}

/// to[j, i] = from[i, j] for `columns` columns. Rows of `to` are whole vectors, padded with zeros.
HWY_NOINLINE inline void transpose_tile(const float* from, size_t from_row, int64_t rows,
                                        int64_t columns, float* to) {
  const size_t m = static_cast<size_t>(rows), n = static_cast<size_t>(columns);
  const size_t to_row = whole_vectors(rows);
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  // Four rows at a time; each 128-bit block of a vector becomes four elements of one column.
  const Floats d;
  const hn::CappedTag<float, 4> d4;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float columns_of[4][hn::MaxLanes(Floats())];
  for (; i + 4 <= m; i += 4) {
    const float* row = from + i * from_row;
    for (size_t j = 0; j < n; j += lanes) {
      const auto r0 = hn::LoadU(d, row + j), r1 = hn::LoadU(d, row + from_row + j);
      const auto r2 = hn::LoadU(d, row + 2 * from_row + j);
      const auto r3 = hn::LoadU(d, row + 3 * from_row + j);
      const auto low02 = hn::InterleaveLower(d, r0, r2), low13 = hn::InterleaveLower(d, r1, r3);
      const auto high02 = hn::InterleaveUpper(d, r0, r2), high13 = hn::InterleaveUpper(d, r1, r3);
      hn::Store(hn::InterleaveLower(d, low02, low13), d, columns_of[0]);
      hn::Store(hn::InterleaveUpper(d, low02, low13), d, columns_of[1]);
      hn::Store(hn::InterleaveLower(d, high02, high13), d, columns_of[2]);
      hn::Store(hn::InterleaveUpper(d, high02, high13), d, columns_of[3]);
      const size_t count = std::min(lanes, n - j);
      for (size_t c = 0; c < count; ++c) {
        hn::StoreU(hn::Load(d4, columns_of[c % 4] + c / 4 * 4), d4, to + (j + c) * to_row + i);
      }
    }
  }
#endif
  for (size_t j = 0; j < n; ++j) {
    for (size_t r = i; r < m; ++r) to[j * to_row + r] = from[r * from_row + j];
    std::fill(to + j * to_row + m, to + (j + 1) * to_row, 0.0F);
  }
}

// --- one tile of scores --------------------------------------------------------------------------

HWY_INLINE const float* bias_row(const AttentionProblem& p, const float* bias, const Tile& t,
                                 int64_t r) {
  return bias + p.bias.heads.at(t.b, t.h) + (t.i + r) * p.bias.heads.row + t.j * p.bias.column;
}
HWY_INLINE const uint8_t* keep_row(const AttentionProblem& p, const uint8_t* keep, const Tile& t,
                                   int64_t r) {
  return keep + p.keep.heads.at(t.b, t.h) + (t.i + r) * p.keep.heads.row + t.j * p.keep.column;
}

/// The mask of those of `count` elements that `keep` allows.
HWY_INLINE hn::Mask<Floats> kept(const AttentionProblem& p, const uint8_t* keep, size_t at,
                                 size_t count) {
  const Floats d;
  const hn::RebindToSigned<Floats> d32;
  const hn::Rebind<uint8_t, Floats> d8;
  if (p.keep.column == 0) return hn::RebindMask(d, hn::Ne(hn::Set(d32, *keep), hn::Zero(d32)));
  const auto bytes = hn::PromoteTo(d32, load_n(d8, keep + at, count));
  return hn::RebindMask(d, hn::Ne(bytes, hn::Zero(d32)));
}

/// Masks one row of scores.
HWY_INLINE void mask_row(const AttentionProblem& p, const AttentionArrays& a, const Tile& t,
                         int64_t r, float* s) {
  const Floats d;
  const auto n = static_cast<size_t>(t.columns);
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  if (p.keep.present) {
    const uint8_t* keep = keep_row(p, a.keep, t, r);
    const auto masked = hn::Set(d, p.masked);
    for_each_vector(d, s, n, [&](VecF v, size_t j, size_t count) HWY_ATTR {
      store_n(hn::IfThenElse(kept(p, keep, j, count), v, masked), d, s + j, count);
    });
  }
  if (p.causal) {
    const int64_t allowed = std::max<int64_t>(0, t.i + r + 1 - t.j);
    if (allowed < t.columns) std::fill(s + allowed, s + t.columns, kMinusInfinity);
  }
  if (p.bias.present) {
    const float* bias = bias_row(p, a.bias, t, r);
    for_each_vector(d, s, n, [&](VecF v, size_t j, size_t count) HWY_ATTR {
      const auto b = p.bias.column == 0 ? hn::Set(d, *bias) : load_n(d, bias + j, count);
      store_n(hn::Add(v, b), d, s + j, count);
    });
  }
}

/// The random words for the elements of a tile: those of steep.Dropout for an operand [B, H, Sq,
/// Sk].
class TileWords {
 public:
  /// The number of words that draw() writes.
  static int64_t size(int64_t rows, int64_t columns) { return rows * row_size(columns); }

  void draw(const AttentionProblem& p, const Philox& philox, const Tile& t, uint32_t* words) {
    words_ = words;
    keys_ = p.keys;
    row_ = row_size(t.columns);
    first_ = ((t.b * p.heads + t.h) * p.queries + t.i) * p.keys + t.j;
    uint64_t from[Philox::kBlocks];
    uint32_t* to[Philox::kBlocks];
    size_t b = 0;
    for (int64_t r = 0; r < t.rows; ++r) {
      const int64_t begin = first_ + r * p.keys, groups = (begin % 4 + t.columns + 3) / 4;
      for (int64_t i = 0; i < groups; i += Philox::kGroups) {
        from[b] = static_cast<uint64_t>(begin / 4 + i);
        to[b] = words + r * row_ + 4 * i;
        if (++b < Philox::kBlocks) continue;
        philox.draw(from, to);
        b = 0;
      }
    }
    if (b == 0) return;
    for (size_t other = b; other < Philox::kBlocks; ++other) {
      from[other] = from[0];
      to[other] = to[0];
    }
    philox.draw(from, to);
  }

  const uint32_t* row(int64_t r) const { return words_ + r * row_ + (first_ + r * keys_) % 4; }

 private:
  /// A row may start up to three words late, and is padded to whole blocks and vectors.
  static int64_t row_size(int64_t columns) {
    constexpr int64_t kBlock = 4 * Philox::kGroups;
    return (columns + 3 + kBlock - 1) / kBlock * kBlock + kBlock;
  }

  const uint32_t* words_ = nullptr;
  int64_t keys_ = 0, first_ = 0, row_ = 0;
};

/// Selects the elements that dropout keeps, from their random words. Other elements become 0; NaN
/// stays NaN, as in PyTorch.
class Keeper {
 public:
  explicit Keeper(const DropoutParams& dropout)
      : none_(dropout.threshold > 0xFFFFFFFF),
        threshold_(hn::Set(Words(), static_cast<uint32_t>(dropout.threshold))) {}

  HWY_INLINE VecF operator()(VecF x, const uint32_t* words) const {
    const Floats d;
    if (none_) return hn::Mul(x, hn::Zero(d));
    const auto drop = hn::Lt(hn::LoadU(Words(), words), threshold_);
    return hn::Mul(x, hn::IfThenZeroElse(hn::RebindMask(d, drop), hn::Set(d, 1.0F)));
  }

 private:
  using Words = hn::RebindToUnsigned<Floats>;
  bool none_;
  hn::Vec<Words> threshold_;
};

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
