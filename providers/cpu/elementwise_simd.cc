// Float loops of the elementwise engine, compiled for every instruction set and chosen at run time.
// Each row gives the results of the same row in elementwise_loops.cc; ops without a row here use
// that one.
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "providers/cpu/elementwise.h"
#include "providers/cpu/isa.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/elementwise_simd.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "providers/cpu/extremes-inl.h"
#include "providers/cpu/philox-inl.h"
#include "providers/cpu/simd-inl.h"
#include "providers/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

constexpr bool has_simd(Code k) {
  using enum Code;
  // clang-format off
  constexpr Code kKnown[] = {
      add, sub, mul, div, min, max, neg, abs, square, cube, scale, sqrt, root, exp, log, erf, tanh, sign,
      floor, ceil, round, reciprocal, sin, cos, sigmoid, relu, leaky_relu, prelu, elu, selu, celu, softplus,
      softsign, hard_sigmoid, hard_swish, thresholded_relu, mish, gelu, gelu_grad, gelu_tanh,
      gelu_tanh_grad, where, equal, greater, greater_equal, less, less_equal, logic_and, logic_or,
      logic_xor, logic_not, is_nan, nonzero};
  // clang-format on
  for (Code code : kKnown) {
    if (k == code) return true;
  }
  return false;
}

/// x to the power 0.5: √x, but ∞ at -∞ and 0 at -0.
template <class D, class V>
HWY_INLINE V root(D d, V x) {
  const V infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  const V at_end = hn::IfThenElse(hn::Eq(x, hn::Neg(infinity)), infinity, x);
  return hn::Sqrt(hn::Add(at_end, hn::Zero(d)));
}

template <class D, class V>
HWY_INLINE V mish(D d, V x) {
  const V two = hn::Set(d, 2.0F);
  const V e = exp_bounded(d, hn::Min(x, hn::Set(d, 20.0F)));
  const V n = hn::Mul(e, hn::Add(e, two));
  const V y = hn::Mul(x, hn::Div(n, hn::Add(n, two)));  // NaN at -∞
  return keep_nan(x, hn::IfThenElse(hn::Gt(x, two + hn::Set(d, 18.0F)), x, y));
}

template <Code k, class D, class V>
// NOLINTNEXTLINE(readability-function-size): a table, one line for each code
HWY_INLINE V evaluate(D d, V a, [[maybe_unused]] V b, [[maybe_unused]] V c, [[maybe_unused]] V p0,
                      [[maybe_unused]] V p1) {
  using enum Code;
  [[maybe_unused]] const V zero = hn::Zero(d);
  [[maybe_unused]] const V one = hn::Set(d, 1.0F);
  auto truth = [&](auto mask) HWY_ATTR { return hn::IfThenElseZero(mask, one); };
  auto if_negative = [&](V yes, V no) HWY_ATTR { return hn::IfThenElse(hn::Lt(a, zero), yes, no); };
  // clang-format off
  if constexpr (k == add) return hn::Add(a, b);
  else if constexpr (k == sub) return hn::Sub(a, b);
  else if constexpr (k == mul) return hn::Mul(a, b);
  else if constexpr (k == div) return hn::Div(a, b);
  else if constexpr (k == min) return min_nan(a, b);
  else if constexpr (k == max) return max_nan(a, b);
  else if constexpr (k == neg) return hn::Neg(a);
  else if constexpr (k == Code::abs) return hn::Abs(a);
  else if constexpr (k == square) return hn::Mul(a, a);
  else if constexpr (k == cube) return hn::Mul(hn::Mul(a, a), a);
  else if constexpr (k == scale) return hn::Mul(a, p0);
  else if constexpr (k == Code::sqrt) return hn::Sqrt(a);
  else if constexpr (k == Code::root) return HWY_NAMESPACE::root(d, a);
  else if constexpr (k == Code::exp) return exp_f32(d, a);
  else if constexpr (k == Code::log) return log_f32(d, a);
  else if constexpr (k == Code::erf) return erf_f32(d, a);
  else if constexpr (k == Code::sin) return sin_f32(d, a);
  else if constexpr (k == Code::cos) return cos_f32(d, a);
  else if constexpr (k == Code::tanh) return tanh_f32(d, a);
  else if constexpr (k == sign)
    return hn::IfThenElse(hn::Or(hn::Eq(a, zero), hn::IsNaN(a)), hn::Add(a, zero), hn::CopySign(one, a));
  else if constexpr (k == Code::floor) return hn::Floor(a);
  else if constexpr (k == Code::ceil) return hn::Ceil(a);
  else if constexpr (k == Code::round) return hn::Round(a);
  else if constexpr (k == reciprocal) return hn::Div(one, a);
  else if constexpr (k == sigmoid) return sigmoid_f32(d, a);
  else if constexpr (k == relu) return if_negative(zero, a);
  else if constexpr (k == leaky_relu) return if_negative(hn::Mul(a, p0), a);
  else if constexpr (k == prelu) return if_negative(hn::Mul(a, b), a);
  else if constexpr (k == elu) return if_negative(hn::Mul(p0, expm1_negative(d, hn::Min(a, zero))), a);
  else if constexpr (k == selu)
    return hn::Mul(p1, if_negative(hn::Mul(p0, expm1_negative(d, hn::Min(a, zero))), a));
  else if constexpr (k == celu)
    return if_negative(hn::Mul(p0, expm1_negative(d, hn::Div(hn::Min(a, zero), p0))), a);
  else if constexpr (k == softplus) return softplus_f32(d, a);
  else if constexpr (k == softsign) return hn::Div(a, hn::Add(one, hn::Abs(a)));
  else if constexpr (k == hard_sigmoid)
    return max_nan(zero, min_nan(one, hn::Add(hn::Mul(p0, a), p1)));
  else if constexpr (k == hard_swish)
    return hn::Mul(a, max_nan(zero, min_nan(one, hn::Add(hn::Div(a, hn::Set(d, 6.0F)), hn::Set(d, 0.5F)))));
  else if constexpr (k == thresholded_relu) return hn::IfThenElse(hn::Le(a, p0), zero, a);
  else if constexpr (k == Code::mish) return HWY_NAMESPACE::mish(d, a);
  else if constexpr (k == gelu) return gelu_f32(d, a);
  else if constexpr (k == gelu_grad) return hn::Mul(a, gelu_slope_f32(d, b));
  else if constexpr (k == gelu_tanh) return gelu_tanh_f32(d, a);
  else if constexpr (k == gelu_tanh_grad) return hn::Mul(a, gelu_tanh_slope_f32(d, b));
  else if constexpr (k == where) return hn::IfThenElse(hn::Ne(a, zero), b, c);
  else if constexpr (k == equal) return truth(hn::Eq(a, b));
  else if constexpr (k == greater) return truth(hn::Gt(a, b));
  else if constexpr (k == greater_equal) return truth(hn::Ge(a, b));
  else if constexpr (k == less) return truth(hn::Lt(a, b));
  else if constexpr (k == less_equal) return truth(hn::Le(a, b));
  else if constexpr (k == logic_and) return truth(hn::And(hn::Ne(a, zero), hn::Ne(b, zero)));
  else if constexpr (k == logic_or) return truth(hn::Or(hn::Ne(a, zero), hn::Ne(b, zero)));
  else if constexpr (k == logic_xor) return truth(hn::Xor(hn::Ne(a, zero), hn::Ne(b, zero)));
  else if constexpr (k == logic_not) return truth(hn::Eq(a, zero));
  else if constexpr (k == is_nan) return truth(hn::IsNaN(a));
  else if constexpr (k == nonzero) return hn::IfThenZeroElse(hn::Eq(a, zero), one);
  else static_assert(k == count, "a code without a row");
  // clang-format on
}

template <Code k>
void loop(float* dst, const float* a, const float* b, const float* c, int64_t n,
          const Params& params) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto p0 = hn::Set(d, static_cast<float>(params.p0));
  const auto p1 = hn::Set(d, static_cast<float>(params.p1));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto y =
        evaluate<k>(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i), hn::LoadU(d, c + i), p0, p1);
    hn::StoreU(y, d, dst + i);
  }
  if (i == n) return;
  const auto rest = static_cast<size_t>(n - i);
  const auto y = evaluate<k>(d, load_n(d, a + i, rest), load_n(d, b + i, rest),
                             load_n(d, c + i, rest), p0, p1);
  store_n(y, d, dst + i, rest);
}

template <size_t... codes>
LoopTable<float> make_table(std::index_sequence<codes...>) {
  LoopTable<float> table = plain_float_loops();
  auto set = [&]<Code k>(std::integral_constant<Code, k>) {
    if constexpr (has_simd(k)) table[static_cast<size_t>(k)] = &loop<k>;
  };
  (set(std::integral_constant<Code, static_cast<Code>(codes)>{}), ...);
  return table;
}

const LoopTable<float>& table() {
  static const LoopTable<float> kTable = make_table(std::make_index_sequence<kCodes>{});
  return kTable;
}

void dropout_loop(const DropoutParams& params, const int64_t* seed, int64_t first, const float* a,
                  float* dst, int64_t n) {
  if (params.threshold > 0xFFFFFFFF) {
    for (int64_t i = 0; i < n; ++i) dst[i] = a == nullptr ? 0 : a[i] * 0;
    return;
  }
  constexpr int64_t kChunk = 512;
  const hn::ScalableTag<float> d;
  const hn::ScalableTag<uint32_t> d32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto threshold = hn::Set(d32, static_cast<uint32_t>(params.threshold));
  const auto scale = hn::Set(d, static_cast<float>(params.scale));
  const auto one = hn::Set(d, 1.0F);
  HWY_ALIGN uint32_t words[kChunk + kPhiloxSlack];
  const Philox philox(seed, params.stream);
  for (int64_t chunk = 0; chunk < n; chunk += kChunk) {
    const int64_t count = std::min(kChunk, n - chunk);
    philox_words(philox, static_cast<uint64_t>(first + chunk) / 4, (count + 3) / 4, words);
    for (int64_t i = 0; i < count; i += lanes) {
      const auto keep = hn::RebindMask(d, hn::Not(hn::Lt(hn::Load(d32, words + i), threshold)));
      const auto rest = static_cast<size_t>(std::min(lanes, count - i));
      float* to = dst + chunk + i;
      // multiply by 0 where dropped, as PyTorch does: NaN stays NaN
      const auto factor = hn::IfThenElseZero(keep, a == nullptr ? one : scale);
      if (rest == static_cast<size_t>(lanes)) {
        hn::StoreU(a == nullptr ? factor : hn::Mul(hn::LoadU(d, a + chunk + i), factor), d, to);
      } else {
        const auto y = a == nullptr ? factor : hn::Mul(load_n(d, a + chunk + i, rest), factor);
        store_n(y, d, to, rest);
      }
    }
  }
}

void narrow_bf16(const void* src, void* dst, int64_t n) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    const uint32_t nan = bits | 0x400000;
    y[i] = static_cast<uint16_t>(((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded) >> 16);
  }
}

void widen_bf16(const void* src, void* dst, int64_t n) {
  const auto* x = static_cast<const uint16_t*>(src);
  auto* y = static_cast<float*>(dst);
  for (int64_t i = 0; i < n; ++i) y[i] = std::bit_cast<float>(uint32_t{x[i]} << 16);
}

Convert bf16_loop(bool narrow) { return narrow ? narrow_bf16 : widen_bf16; }

// float_to_f16 and f16_to_float of convert.cc without branches, so that the compiler can vectorise
// them.
void narrow_f16(const void* src, void* dst, int64_t n) {
  const auto* x = static_cast<const float*>(src);
  auto* y = static_cast<uint16_t*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    const uint32_t magnitude = bits & 0x7FFFFFFF;
    const uint32_t normal = (magnitude + 0xFFF + ((magnitude >> 13) & 1) - (112U << 23)) >> 13;
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;  // the last bit is 2^-24
    const uint32_t subnormal = std::bit_cast<uint32_t>(aligned) - 0x3F000000;
    uint32_t half = magnitude < 0x38800000 ? subnormal : normal;
    half = magnitude >= 0x477FF000 ? 0x7C00 : half;
    half = magnitude > 0x7F800000 ? 0x7E00 : half;
    y[i] = static_cast<uint16_t>(half | (bits >> 31 << 15));
  }
}

void widen_f16(const void* src, void* dst, int64_t n) {
  const auto* x = static_cast<const uint16_t*>(src);
  auto* y = static_cast<float*>(dst);
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = x[i], magnitude = bits & 0x7FFF;
    const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24F;
    const uint32_t normal = (magnitude << 13) + (112U << 23);
    const uint32_t special = (magnitude << 13) | 0x7F800000;
    uint32_t wide = magnitude < 0x400 ? std::bit_cast<uint32_t>(subnormal) : normal;
    wide = magnitude >= 0x7C00 ? special : wide;
    y[i] = std::bit_cast<float>(wide | (bits >> 15 << 31));
  }
}

Convert f16_loop(bool narrow) { return narrow ? narrow_f16 : widen_f16; }

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {

HWY_EXPORT(table);
HWY_EXPORT(dropout_loop);
HWY_EXPORT(bf16_loop);
HWY_EXPORT(f16_loop);

Convert bf16_narrowing() {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(bf16_loop)(true);
}

Convert bf16_widening() {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(bf16_loop)(false);
}

Convert f16_narrowing() {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(f16_loop)(true);
}

Convert f16_widening() {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(f16_loop)(false);
}

const LoopTable<float>& float_loops() {
  limit_isa();
  return HWY_DYNAMIC_DISPATCH(table)();
}

void dropout(const DropoutParams& params, const int64_t* seed, int64_t first, const float* a,
             float* dst, int64_t n) {
  HWY_DYNAMIC_DISPATCH(dropout_loop)(params, seed, first, a, dst, n);
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
