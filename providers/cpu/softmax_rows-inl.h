// Passes over one row that softmax and cross-entropy share. Included once for each target.
#include "providers/cpu/simd-inl.h"

#if defined(STEEP_SOFTMAX_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_SOFTMAX_ROWS_INL_H_
#undef STEEP_SOFTMAX_ROWS_INL_H_
#else
#define STEEP_SOFTMAX_ROWS_INL_H_
#endif

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using VecF = hn::Vec<Floats>;

/// exp(x), to 2 ulp, for x up to 88: an element less its row's maximum. 0 where x < -87.3, below
/// which results are not normal numbers; NaN for NaN, since a diverging model must see it.
/// Reduction by ln 2 in two parts (Cody & Waite 1980), then the polynomial of Cephes' expf. Half
/// the work of Highway's Exp, which serves all of float's range.
HWY_INLINE VecF exp_shifted(Floats d, VecF x) {
  const hn::RebindToSigned<Floats> di;
  const auto set = [d](float v) HWY_ATTR { return hn::Set(d, v); };
  const auto n = hn::NearestInt(hn::Mul(x, set(1.44269504088896341F)));
  const auto whole = hn::ConvertTo(d, n);
  auto r = hn::NegMulAdd(whole, set(0.693359375F), x);
  r = hn::NegMulAdd(whole, set(-2.12194440e-4F), r);
  auto p = hn::MulAdd(r, set(1.9875691500e-4F), set(1.3981999507e-3F));
  p = hn::MulAdd(r, p, set(8.3334519073e-3F));
  p = hn::MulAdd(r, p, set(4.1665795894e-2F));
  p = hn::MulAdd(r, p, set(1.6666665459e-1F));
  p = hn::MulAdd(r, p, set(5.0000001201e-1F));
  p = hn::Add(hn::MulAdd(hn::Mul(r, r), p, r), set(1.0F));
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, set(-87.33F)), hn::Mul(p, power));
}

/// Calls body(vector of x, j, lanes) for each vector; the last may hold fewer lanes, with zeros
/// behind.
template <typename T, typename Body>
HWY_INLINE void for_each_vector(Floats d, const T* x, size_t n, Body&& body) {
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= n; j += lanes) body(load(d, x + j), j, lanes);
  if (j < n) body(load_n(d, x + j, n - j), j, n - j);
}

/// Greatest element; -inf for an empty row. Overlooks NaN.
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

/// Sum of exp(x - shift); where y is not null, the terms too.
template <typename T>
HWY_INLINE float row_exp_sum(Floats d, const T* x, size_t n, float shift, float* y) {
  const size_t lanes = hn::Lanes(d);
  const auto shifts = hn::Set(d, shift);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    const auto e0 = exp_shifted(d, hn::Sub(load(d, x + j), shifts));
    const auto e1 = exp_shifted(d, hn::Sub(load(d, x + j + lanes), shifts));
    s0 = hn::Add(s0, e0);
    s1 = hn::Add(s1, e1);
    if (y != nullptr) {
      hn::StoreU(e0, d, y + j);
      hn::StoreU(e1, d, y + j + lanes);
    }
  }
  float* rest = y == nullptr ? nullptr : y + j;
  for_each_vector(d, x + j, n - j, [&](VecF v, size_t at, size_t count) {
    const auto e = hn::IfThenElseZero(hn::FirstN(d, count), exp_shifted(d, hn::Sub(v, shifts)));
    s0 = hn::Add(s0, e);
    if (rest != nullptr) store_n(e, d, rest + at, count);
  });
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
