// Float functions on Highway vectors. Included once for each target, inside elementwise and other
// SIMD files. Relative errors are below 4 units in the last place unless noted; NaN stays NaN,
// infinities give the limits. The polynomials are least-squares fits made for this file, weighted
// to near-minimax relative error.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

#if defined(STEEP_VECTOR_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_VECTOR_MATH_INL_H_
#undef STEEP_VECTOR_MATH_INL_H_
#else
#define STEEP_VECTOR_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// c[0] + c[1] x + … by Horner's rule.
template <class D, class V, size_t n>
HWY_INLINE V polynomial(D d, V x, const float (&c)[n]) {
  V sum = hn::Set(d, c[n - 1]);
  for (size_t i = n - 1; i-- > 0;) sum = hn::MulAdd(sum, x, hn::Set(d, c[i]));
  return sum;
}

/// NaN where `x` is NaN, else `y`.
template <class V>
HWY_INLINE V keep_nan(V x, V y) {
  return hn::IfThenElse(hn::IsNaN(x), x, y);
}

template <class D, class V>
HWY_INLINE V exp_f32(D d, V x) {
  // Highway's is defined for up to 104; 89 gives infinity already.
  return keep_nan(x, hn::Exp(d, hn::Min(hn::Max(x, hn::Set(d, -150.0F)), hn::Set(d, 100.0F))));
}

template <class D, class V>
HWY_INLINE V log_f32(D d, V x) {
  const V zero = hn::Zero(d);
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), y);
  y = hn::IfThenElse(hn::Eq(x, infinity), x, y);
  y = hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, std::numeric_limits<float>::quiet_NaN()), y);
  return keep_nan(x, y);
}

/// exp(x) - 1, exact near 0. For x <= 0 only.
template <class D, class V>
HWY_INLINE V expm1_negative(D d, V x) {
  return keep_nan(x, hn::Expm1(d, hn::Max(x, hn::Set(d, -100.0F))));
}

template <class D, class V>
HWY_INLINE V sigmoid_f32(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  return hn::Div(one, hn::Add(one, exp_f32(d, hn::Neg(x))));
}

template <class D, class V>
HWY_INLINE V tanh_f32(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V magnitude = hn::Abs(x);
  // 1 - 2 / (exp(2|x|) + 1), and near 0, where that cancels, x + x³ P(x²)
  const V e = hn::Exp(d, hn::Min(hn::Add(magnitude, magnitude), hn::Set(d, 30.0F)));
  const V far = hn::CopySign(hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(e, one))), x);
  const V z = hn::Mul(x, x);
  constexpr float kP[] = {-0.333333283662796F, 0.13332770764827728F, -0.05385095253586769F,
                          0.02099734917283058F, -0.006096931174397469F};
  const V near = hn::MulAdd(hn::Mul(x, z), polynomial(d, z, kP), x);
  return keep_nan(x, hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625F)), near, far));
}

/// 1 - erf(sqrt(square + lost)) for y = sqrt(square) >= 0, with a relative error below 1e-6 down to
/// where it underflows. `lost` is what rounding took from the square.
template <class D, class V>
HWY_INLINE V erfc_positive(D d, V y, V square, V lost) {
  // exp(-y²) t Q(t), t = 1 / (1 + y/2)
  const V one = hn::Set(d, 1.0F);
  const V t = hn::Div(one, hn::MulAdd(y, hn::Set(d, 0.5F), one));
  constexpr float kQ[] = {0.2820855677127838F,   0.2823900878429413F,   0.2429964691400528F,
                          0.20311053097248077F,  -0.02762497216463089F, 0.27951496839523315F,
                          -0.48846307396888733F, 0.28518393635749817F,  -0.05919356644153595F};
  const V e = hn::Exp(d, hn::Neg(square));
  return hn::Mul(hn::NegMulAdd(e, lost, e), hn::Mul(t, polynomial(d, t, kQ)));
}

template <class D, class V>
HWY_INLINE V erf_f32(D d, V x) {
  const V magnitude = hn::Abs(x);
  const V y = hn::Min(magnitude, hn::Set(d, 10.0F));
  const V square = hn::Mul(y, y);
  const V tail = erfc_positive(d, y, square, hn::MulSub(y, y, square));
  const V far = hn::CopySign(hn::Sub(hn::Set(d, 1.0F), tail), x);
  constexpr float kP[] = {1.1283791065216064F,   -0.3761260211467743F,  0.11283113062381744F,
                          -0.02682080678641796F, 0.005085130222141743F, -0.0006535234861075878F};
  const V near = hn::Mul(x, polynomial(d, hn::Mul(x, x), kP));
  return keep_nan(x, hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.8F)), near, far));
}

/// x Φ(x), accurate in the left tail as well.
template <class D, class V>
HWY_INLINE V gelu_f32(D d, V x) {
  const V half = hn::Set(d, 0.5F);
  const V magnitude = hn::Min(hn::Abs(x), hn::Set(d, 15.0F));
  const V square = hn::Mul(magnitude, magnitude);
  const V lost = hn::MulSub(magnitude, magnitude, square);
  const V y = hn::Mul(magnitude, hn::Set(d, 0.70710678F));
  const V half_tail =
      hn::Mul(half, erfc_positive(d, y, hn::Mul(half, square), hn::Mul(half, lost)));
  const V share =
      hn::IfThenElse(hn::Lt(x, hn::Zero(d)), half_tail, hn::Sub(hn::Set(d, 1.0F), half_tail));
  // The limit at minus infinity is 0, not inf * 0.
  return keep_nan(x, hn::Mul(hn::Max(x, hn::Set(d, -100.0F)), share));
}

template <class D, class V>
HWY_INLINE V softplus_f32(D d, V x) {
  const V e = hn::Exp(d, hn::Max(hn::Neg(hn::Abs(x)), hn::Set(d, -150.0F)));
  return keep_nan(x, hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, e)));
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
