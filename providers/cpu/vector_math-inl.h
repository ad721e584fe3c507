// Float functions on Highway vectors. Included once per target, inside elementwise and other SIMD
// files. Relative errors are below 4 ulp unless noted; NaN stays NaN, infinities give the limits,
// and results too small for normal numbers may be 0. The polynomials are least-squares fits made
// for this file, weighted to near-minimax relative error.
#include <cmath>

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

/// exp(x), to 2.2 ulp, for x up to 88: for arguments from which a maximum was subtracted. 0 where x
/// < -87.3, where results would be subnormal. Reduction by ln 2 in two parts (Cody & Waite 1980);
/// adding 1.5 2^23 rounds to an integer, which is then, with the exponent's bias, in the low bits.
/// Costs less than half of Highway's Exp, which covers all of float's range.
template <class D, class V>
HWY_INLINE V exp_bounded(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V rounding = hn::Set(d, 12583039.0F);  // 1.5 * 2^23 + 127
  const V biased = hn::MulAdd(x, hn::Set(d, 1.44269504F), rounding);
  const V whole = hn::Sub(biased, rounding);
  V r = hn::NegMulAdd(whole, hn::Set(d, 0.693359375F), x);
  r = hn::NegMulAdd(whole, hn::Set(d, -2.12194440e-4F), r);
  constexpr float kP[] = {1.0F,
                          1.0F,
                          0.499992311000824F,
                          0.16667115688323975F,
                          0.041890330612659454F,
                          0.008312501013278961F};
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(di, biased)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.33F)), hn::Mul(polynomial(d, r, kP), power));
}

template <class D, class V>
HWY_INLINE V exp_f32(D d, V x) {
  // Highway's Exp is valid up to 104; 89 gives infinity already.
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

/// `y`, but f(x) where |x| is 30,000 and more, infinite or NaN: there the reduction by multiples of
/// π is not exact in float32.
template <class D, class V>
HWY_INLINE V exact_far(D d, V x, V y, float (*f)(float)) {
  const auto near = hn::Lt(hn::Abs(x), hn::Set(d, 30000.0F));
  if (HWY_LIKELY(hn::AllTrue(d, near))) return y;
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(x, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = f(lanes[i]);
  return hn::IfThenElse(near, y, hn::Load(d, lanes));
}

template <class D, class V>
HWY_INLINE V sin_f32(D d, V x) {
  const V y = hn::IfThenElse(hn::Eq(x, hn::Zero(d)), x, hn::Sin(d, x));  // -0 stays -0
  return exact_far(d, x, y, [](float v) { return std::sin(v); });
}

template <class D, class V>
HWY_INLINE V cos_f32(D d, V x) {
  return exact_far(d, x, hn::Cos(d, x), [](float v) { return std::cos(v); });
}

/// exp(x) - 1, exact near 0. For x <= 0 only.
template <class D, class V>
HWY_INLINE V expm1_negative(D d, V x) {
  return keep_nan(x, hn::Expm1(d, hn::Max(x, hn::Set(d, -100.0F))));
}

template <class D, class V>
HWY_INLINE V sigmoid_f32(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V e = exp_bounded(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

template <class D, class V>
HWY_INLINE V tanh_f32(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V magnitude = hn::Abs(x);
  // 1 - 2 / (exp(2|x|) + 1), and near 0, where that cancels, x + x³ P(x²)
  const V e = exp_bounded(d, hn::Min(hn::Add(magnitude, magnitude), hn::Set(d, 30.0F)));
  const V far = hn::CopySign(hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(e, one))), x);
  const V z = hn::Mul(x, x);
  constexpr float kP[] = {-0.333333283662796F, 0.13332770764827728F, -0.05385095253586769F,
                          0.02099734917283058F, -0.006096931174397469F};
  const V near = hn::MulAdd(hn::Mul(x, z), polynomial(d, z, kP), x);
  return keep_nan(x, hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625F)), near, far));
}

/// exp(-scale x²), for |x| up to 15, corrected for the rounding error of the square. `scale`: 1 or
/// 0.5.
template <class D, class V>
HWY_INLINE V exp_minus_square(D d, V x, float scale) {
  const V factor = hn::Set(d, -scale), square = hn::Mul(x, x);
  const V e = exp_bounded(d, hn::Mul(factor, square));
  return hn::MulAdd(hn::Mul(e, factor), hn::MulSub(x, x, square), e);
}

/// 1 - erf(y) for y >= 0, given e = exp(-y²). The relative error is below 1e-6 until e underflows.
template <class D, class V>
HWY_INLINE V erfc_positive(D d, V y, V e) {
  // e t Q(t), t = 1 / (1 + y/2)
  const V one = hn::Set(d, 1.0F);
  const V t = hn::Div(one, hn::MulAdd(y, hn::Set(d, 0.5F), one));
  constexpr float kQ[] = {0.2820855677127838F,   0.2823900878429413F,   0.2429964691400528F,
                          0.20311053097248077F,  -0.02762497216463089F, 0.27951496839523315F,
                          -0.48846307396888733F, 0.28518393635749817F,  -0.05919356644153595F};
  return hn::Mul(e, hn::Mul(t, polynomial(d, t, kQ)));
}

template <class D, class V>
HWY_INLINE V erf_f32(D d, V x) {
  const V magnitude = hn::Abs(x);
  const V y = hn::Min(magnitude, hn::Set(d, 10.0F));
  const V tail = erfc_positive(d, y, exp_minus_square(d, y, 1.0F));
  const V far = hn::CopySign(hn::Sub(hn::Set(d, 1.0F), tail), x);
  constexpr float kP[] = {1.1283791065216064F,   -0.3761260211467743F,  0.11283113062381744F,
                          -0.02682080678641796F, 0.005085130222141743F, -0.0006535234861075878F};
  const V near = hn::Mul(x, polynomial(d, hn::Mul(x, x), kP));
  return keep_nan(x, hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.8F)), near, far));
}

/// 1 - Φ(x) for x >= 0, given e = exp(-x²/2).
template <class D, class V>
HWY_INLINE V normal_tail(D d, V x, V e) {
  return hn::Mul(hn::Set(d, 0.5F), erfc_positive(d, hn::Mul(x, hn::Set(d, 0.70710678F)), e));
}

/// x Φ(x), also accurate in the left tail. At -∞ it is -∞ · 0 = NaN, as in ONNX's formula.
template <class D, class V>
HWY_INLINE V gelu_f32(D d, V x) {
  const V magnitude = hn::Min(hn::Abs(x), hn::Set(d, 15.0F));
  const V tail = normal_tail(d, magnitude, exp_minus_square(d, magnitude, 0.5F));
  const V share = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, 1.0F), tail));
  return keep_nan(x, hn::Mul(x, share));
}

/// Φ(x) + x φ(x), to 1e-6. At both infinities it is NaN, from ∞ · 0.
template <class D, class V>
HWY_INLINE V gelu_slope_f32(D d, V x) {
  const V magnitude = hn::Min(hn::Abs(x), hn::Set(d, 15.0F));
  const V e = exp_minus_square(d, magnitude, 0.5F);
  const V density = hn::Mul(e, hn::Set(d, 0.39894228F));
  const V left = hn::NegMulAdd(hn::Abs(x), density, normal_tail(d, magnitude, e));
  return keep_nan(x, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), left, hn::Sub(hn::Set(d, 1.0F), left)));
}

/// The tanh approximation of x Φ(x): x sigmoid(k (x + c x³)). NaN at -∞, as above.
template <class D, class V>
HWY_INLINE V gelu_tanh_f32(D d, V x) {
  const V cubic = hn::MulAdd(hn::Mul(hn::Mul(x, x), x), hn::Set(d, 0.044715F), x);
  const V share = sigmoid_f32(d, hn::Mul(cubic, hn::Set(d, 1.5957691F)));
  return keep_nan(x, hn::Mul(x, share));
}

/// The derivative of gelu_tanh_f32: s + x s (1 - s) k (1 + 3 c x²) with s = sigmoid(…), to 1e-6.
/// NaN, from 0 · ∞, where the square is infinite.
template <class D, class V>
HWY_INLINE V gelu_tanh_slope_f32(D d, V x) {
  const V one = hn::Set(d, 1.0F);
  const V line = hn::Mul(x, hn::Set(d, 1.5957691F));
  const V square = hn::Mul(hn::Mul(x, x), hn::Set(d, 0.044715F));
  const V e = exp_bounded(d, hn::Neg(hn::Abs(hn::MulAdd(line, square, line))));
  const V far = hn::Div(one, hn::Add(one, e)), tail = hn::Mul(e, far);
  const V s = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, far);
  const V inner = hn::MulAdd(square, hn::Set(d, 3.0F), one);
  return keep_nan(x, hn::MulAdd(hn::Mul(hn::Mul(tail, far), line), inner, s));
}

template <class D, class V>
HWY_INLINE V softplus_f32(D d, V x) {
  const V e = exp_bounded(d, hn::Neg(hn::Abs(x)));
  return keep_nan(x, hn::Add(hn::Max(x, hn::Zero(d)), hn::Log1p(d, e)));
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
