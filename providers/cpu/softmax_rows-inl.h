// Passes over one row that softmax and cross entropy share. Included once per target.
#include "providers/cpu/simd-inl.h"
#include "providers/cpu/vector_math-inl.h"

#if defined(STEEP_SOFTMAX_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_SOFTMAX_ROWS_INL_H_
#undef STEEP_SOFTMAX_ROWS_INL_H_
#else
#define STEEP_SOFTMAX_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using VecF = hn::Vec<Floats>;

/// Calls body(vector of x, j, lanes) for each vector; the last may have fewer lanes and is padded
/// with zeros.
template <typename T, typename Body>
HWY_INLINE void for_each_vector(Floats d, const T* x, size_t n, Body&& body) {
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= n; j += lanes) body(load(d, x + j), j, lanes);
  if (j < n) body(load_n(d, x + j, n - j), j, n - j);
}

/// The greatest element; -inf for an empty row. Ignores NaN.
template <typename T>
HWY_INLINE float row_max(Floats d, const T* x, size_t n) {
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const size_t lanes = hn::Lanes(d);
  auto m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  size_t j = 0;
  for (; j + 4 * lanes <= n; j += 4 * lanes) {
    m0 = hn::Max(m0, load(d, x + j));
    m1 = hn::Max(m1, load(d, x + j + lanes));
    m2 = hn::Max(m2, load(d, x + j + 2 * lanes));
    m3 = hn::Max(m3, load(d, x + j + 3 * lanes));
  }
  for_each_vector(d, x + j, n - j, [&](VecF v, size_t, size_t count) {
    m0 = hn::Max(m0, hn::IfThenElse(hn::FirstN(d, count), v, lowest));
  });
  return hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

/// e with a zero in lane `lane`, if that lane exists.
HWY_INLINE VecF but_for(Floats d, VecF e, size_t lane) {
  const hn::RebindToUnsigned<Floats> du;
  const auto lanes = hn::Iota(du, 0);
  const auto target = hn::Set(du, static_cast<uint32_t>(std::min(lane, hn::Lanes(d))));
  return hn::IfThenZeroElse(hn::RebindMask(d, hn::Eq(lanes, target)), e);
}

/// The sum of exp(x - shift) without element `without`. Stores the terms in `y` if not null. Raises
/// *greatest, if not null, to the greatest element: if that exceeds the shift by more than 88, the
/// sum is invalid.
template <typename T>
HWY_INLINE float row_exp_sum(Floats d, const T* x, size_t n, float shift, float* y,
                             float* greatest = nullptr, size_t without = SIZE_MAX) {
  const size_t lanes = hn::Lanes(d);
  const auto shifts = hn::Set(d, shift);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  auto m0 = hn::Set(d, greatest == nullptr ? 0.0F : *greatest), m1 = m0;
  size_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    const auto x0 = load(d, x + j), x1 = load(d, x + j + lanes);
    auto e0 = exp_bounded(d, hn::Sub(x0, shifts)), e1 = exp_bounded(d, hn::Sub(x1, shifts));
    if (HWY_UNLIKELY(without - j < 2 * lanes)) {
      e0 = but_for(d, e0, without - j);
      e1 = but_for(d, e1, without - j - lanes);
    }
    s0 = hn::Add(s0, e0);
    s1 = hn::Add(s1, e1);
    if (greatest != nullptr) {
      m0 = hn::Max(m0, x0);
      m1 = hn::Max(m1, x1);
    }
    if (y != nullptr) {
      hn::StoreU(e0, d, y + j);
      hn::StoreU(e1, d, y + j + lanes);
    }
  }
  float* rest = y == nullptr ? nullptr : y + j;
  for_each_vector(d, x + j, n - j, [&](VecF v, size_t at, size_t count) {
    const auto there = hn::FirstN(d, count);
    const auto e = hn::IfThenElseZero(there, exp_bounded(d, hn::Sub(v, shifts)));
    s0 = hn::Add(s0, but_for(d, e, without - j - at));
    m0 = hn::Max(m0, hn::IfThenElse(there, v, m0));
    if (rest != nullptr) store_n(e, d, rest + at, count);
  });
  if (greatest != nullptr) *greatest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
