// Matrix products in registers, shared by small and blocked products. Included once per target,
// after foreach_target.h.
#if defined(STEEP_MATMUL_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_MATMUL_TILES_INL_H_
#undef STEEP_MATMUL_TILES_INL_H_
#else
#define STEEP_MATMUL_TILES_INL_H_
#endif

#include <algorithm>

#include "providers/cpu/matmul.h"
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// The problem with data pointers. b and y have unit stride along n. `b_k`: stride of b along k;
/// `bias` may be null.
template <typename T>
struct Tile {
  const MatMulProblem& p;
  const T* a;
  const T* b;
  int64_t b_k;
  const T* bias;
  T* y;
  int64_t depth;       ///< number of terms, from the start of a and b
  bool begins = true;  ///< starts the sum; false: adds to y
  bool ends = true;    ///< false: y keeps the partial sum, without bias and activation
};

#if HWY_MAX_BYTES >= 64
constexpr size_t kWidest = 4;  // vectors; with four rows and a factor they fit into 32 registers
#else
constexpr size_t kWidest = 2;  // into 16 registers
#endif
/// Rows of a block: enough independent sums to hide the latency of a multiply-add.
template <size_t kVectors>
constexpr int64_t kTall = kVectors == 1 ? 8 : 4;

/// Applies bias and Relu to a sum. `value` holds `n` columns of y from j on.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> finished(D d, const Tile<T>& t, hn::Vec<D> value, int64_t row, int64_t j,
                               size_t n) {
  if (t.bias != nullptr) {
    const auto bias = t.p.bias_on_rows ? hn::Set(d, t.bias[row]) : load_n(d, t.bias + j, n);
    value = hn::Add(value, bias);
  }
  if (!t.p.relu) return value;
  return hn::IfThenElse(hn::Lt(value, hn::Zero(d)), hn::Zero(d), value);  // NaN stays NaN
}

/// Computes rows [i, i + kRows) of y, `count` columns from j, at most kVectors vectors. All loops
/// over sums are unrolled, because an array with a variable index would be in memory.
template <size_t kRows, size_t kVectors, class D, typename T = hn::TFromD<D>>
HWY_INLINE void block(D d, const Tile<T>& t, int64_t i, int64_t j, size_t count) {
  constexpr size_t kLast = kVectors - 1;
  const MatMulProblem& p = t.p;
  const size_t lanes = hn::Lanes(d);
  const size_t rest = count - kLast * lanes;
  const int64_t a_m = p.a_m, a_k = p.a_k, b_k = t.b_k, depth = t.depth;
  const T* a = t.a + i * a_m;
  const T* b = t.b + j;
  hn::Vec<D> sum[kRows][kVectors];
  HWY_UNROLL(8) for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
      const T* so_far = t.y + (i + static_cast<int64_t>(r)) * p.y_m + j + v * lanes;
      sum[r][v] = t.begins ? hn::Zero(d) : load_n(d, so_far, v == kLast ? rest : lanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k, a += a_k, b += b_k) {
    hn::Vec<D> w[kVectors];
    HWY_UNROLL(4) for (size_t v = 0; v < kLast; ++v) w[v] = hn::LoadU(d, b + v * lanes);
    w[kLast] = load_n(d, b + kLast * lanes, rest);
    HWY_UNROLL(8) for (size_t r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, a[static_cast<int64_t>(r) * a_m]);
      HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(factor, w[v], sum[r][v]);
      }
    }
  }
  const auto alpha = hn::Set(d, static_cast<T>(p.alpha));
  HWY_UNROLL(8) for (size_t r = 0; r < kRows; ++r) {
    const int64_t row = i + static_cast<int64_t>(r);
    T* y = t.y + row * p.y_m + j;
    HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
      const size_t n = v == kLast ? rest : lanes;
      if (!t.ends) {
        store_n(sum[r][v], d, y + v * lanes, n);
        continue;
      }
      const auto result = finished(d, t, hn::Mul(alpha, sum[r][v]), row, j + v * lanes, n);
      store_n(result, d, y + v * lanes, n);
    }
  }
}

template <size_t kVectors, class D, typename T = hn::TFromD<D>>
void columns(D d, const Tile<T>& t, int64_t begin, int64_t end, int64_t j, size_t count) {
  constexpr int64_t tall = kTall<kVectors>;
  int64_t i = begin;
  for (; i + tall <= end; i += tall) block<tall, kVectors>(d, t, i, j, count);
  for (; i < end; ++i) block<1, kVectors>(d, t, i, j, count);
}

/// The maximal number of columns of panel().
template <class D>
int64_t panel_width(D d) {
  return static_cast<int64_t>(kWidest * hn::Lanes(d));
}

/// Computes rows [begin, end) of y, `count` columns from j.
template <class D, typename T = hn::TFromD<D>>
void panel(D d, const Tile<T>& t, int64_t begin, int64_t end, int64_t j, int64_t count) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto n = static_cast<size_t>(count);
  switch ((count + lanes - 1) / lanes) {
    case 1: columns<1>(d, t, begin, end, j, n); break;
    case 2: columns<2>(d, t, begin, end, j, n); break;
#if HWY_MAX_BYTES >= 64
    case 3: columns<3>(d, t, begin, end, j, n); break;
    case 4: columns<4>(d, t, begin, end, j, n); break;
#endif
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // STEEP_MATMUL_TILES_INL_H_
