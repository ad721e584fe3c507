#include "providers/cpu/narrow_moments.h"

#include <hwy/cache_control.h>

#include <bit>

#include "providers/cpu/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/narrow_moments.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using U = hn::RebindToUnsigned<F>;
using Codes = hn::Rebind<uint8_t, F>;

constexpr int kDropped = Float8Format::kDropped;
constexpr int32_t kInfinity = 0x7F800000;

/// As number() of data/block_float.cc. `scale`: the exponent of the block's scale. kSpecial: there
/// may be infinity or NaN. Writes whole vectors.
template <bool kSigned, bool kSpecial>
HWY_INLINE void widen_codes(const uint8_t* HWY_RESTRICT codes, int32_t scale, int64_t count,
                            float* HWY_RESTRICT to) {
  constexpr Float8Format kFormat{kSigned};
  const F d;
  const I di;
  const Codes d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto base =
      hn::Set(di, static_cast<int32_t>(static_cast<uint32_t>(scale - kFormat.top()) << 23));
  const auto lift = hn::Set(di, 1 << 23);
  const auto least = hn::BitCast(d, hn::Add(base, lift));
  const auto update = [&](int64_t i, auto bytes) HWY_ATTR {
    const auto code = hn::PromoteTo(di, bytes);
    const auto magnitude = kSigned ? hn::And(code, hn::Set(di, 0x7F)) : code;
    const auto mantissa = hn::ShiftLeft<kDropped>(magnitude);
    const auto subnormal = hn::Lt(magnitude, hn::Set(di, Float8Format::kSubnormals));
    const auto bits = hn::Add(hn::Add(mantissa, base), hn::IfThenElseZero(subnormal, lift));
    auto x = hn::BitCast(d, bits);
    x = hn::Sub(x, hn::IfThenElseZero(hn::RebindMask(d, subnormal), least));
    if constexpr (kSpecial) {
      const auto special = hn::Gt(magnitude, hn::Set(di, kFormat.infinity() - 1));
      const auto specials = hn::BitCast(d, hn::Or(mantissa, hn::Set(di, kInfinity)));
      x = hn::IfThenElse(hn::RebindMask(d, special), specials, x);
    }
    if constexpr (kSigned) {
      const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(di, 0x80)));
      x = hn::BitCast(d, hn::Or(hn::BitCast(di, x), sign));
    }
    hn::StoreU(x, d, to + i);
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) update(i, hn::LoadU(d8, codes + i));
  if (i < count) update(i, load_n(d8, codes + i, static_cast<size_t>(count - i)));
}

/// Whether a code may be infinity or NaN.
template <bool kSigned>
HWY_INLINE bool may_be_special(const uint8_t* codes, int64_t count) {
  constexpr Float8Format kFormat{kSigned};
  const hn::ScalableTag<uint8_t> d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d8));
  if (count % lanes != 0) return true;
  auto greatest = hn::Zero(d8);
  for (int64_t i = 0; i < count; i += lanes) {
    const auto code = hn::LoadU(d8, codes + i);
    greatest = hn::Max(greatest, kSigned ? hn::And(code, hn::Set(d8, uint8_t{0x7F})) : code);
  }
  const auto finite = hn::Set(d8, static_cast<uint8_t>(kFormat.greatest()));
  return !hn::AllTrue(d8, hn::Eq(hn::Max(greatest, finite), finite));
}

template <bool kSigned>
HWY_INLINE void widen_block(const uint8_t* HWY_RESTRICT codes, int32_t scale, int64_t count,
                            float* HWY_RESTRICT to) {
  if (scale == 0) {
    const F d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < count; i += lanes) hn::StoreU(hn::Zero(d), d, to + i);
  } else if (may_be_special<kSigned>(codes, count)) {
    widen_codes<kSigned, true>(codes, scale, count, to);
  } else {
    widen_codes<kSigned, false>(codes, scale, count, to);
  }
}

/// The bits of the greatest magnitude; with kFinite, of the greatest finite one. Reads whole
/// vectors, whose surplus is 0.
template <bool kFinite>
HWY_INLINE int32_t greatest_bits(const float* HWY_RESTRICT from, int64_t count) {
  const F d;
  const I di;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto greatest = hn::Zero(di);
  for (int64_t i = 0; i < count; i += lanes) {
    auto bits = hn::BitCast(di, hn::Abs(hn::LoadU(d, from + i)));
    if constexpr (kFinite) bits = hn::IfThenElseZero(hn::Lt(bits, hn::Set(di, kInfinity)), bits);
    greatest = hn::Max(greatest, bits);
  }
  return hn::GetLane(hn::MaxOfLanes(di, greatest));
}

/// 16 random bits in each lane.
template <bool kSecond>
HWY_INLINE auto random16(I di, const uint32_t* words) {
  const U du;
  const auto drawn = hn::LoadU(du, words);
  return hn::BitCast(di, kSecond ? hn::And(drawn, hn::Set(du, 0xFFFF)) : hn::ShiftRight<16>(drawn));
}

/// As code_of() of data/block_float.cc, but rounds at random. kSpecial: there may be infinity or
/// NaN, or numbers that the greatest scale cannot reach.
template <bool kSigned, bool kSecond, bool kSpecial>
HWY_INLINE void narrow_block(const float* HWY_RESTRICT from, const uint32_t* HWY_RESTRICT words,
                             int32_t scale, int64_t count, uint8_t* HWY_RESTRICT codes,
                             const float* soon) {
  constexpr Float8Format kFormat{kSigned};
  const F d;
  const I di;
  const U du;
  const Codes d8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int32_t zero = scale - kFormat.top();
  const auto lowest = hn::Set(di, (zero + 1) << 23);
  const auto least = hn::BitCast(d, lowest);
  const auto offset = hn::Set(di, zero * Float8Format::kSubnormals);
  const auto subnormals = hn::Set(di, Float8Format::kSubnormals);
  const auto code_at = [&](int64_t i) HWY_ATTR {
    hwy::Prefetch(soon + i);
    const auto bits = hn::BitCast(di, hn::LoadU(d, from + i));
    const auto magnitude = hn::And(bits, hn::Set(di, 0x7FFFFFFF));
    const auto subnormal = hn::Lt(magnitude, lowest);
    const auto lift = hn::IfThenElseZero(hn::RebindMask(d, subnormal), least);
    const auto lifted = hn::BitCast(di, hn::Add(hn::BitCast(d, magnitude), lift));
    const auto noise = hn::ShiftLeft<kDropped - 16>(random16<kSecond>(di, words + i));
    auto code = hn::Sub(hn::ShiftRight<kDropped>(hn::Add(lifted, noise)), offset);
    code = hn::Sub(code, hn::IfThenElseZero(subnormal, subnormals));
    if constexpr (kSpecial) code = hn::Min(code, hn::Set(di, kFormat.greatest()));
    if constexpr (!kSigned) code = hn::Max(code, hn::Min(magnitude, hn::Set(di, 1)));
    if constexpr (kSpecial) {
      const auto infinite = hn::Set(di, kFormat.infinity()), nan = hn::Set(di, kFormat.nan());
      const auto special = hn::IfThenElse(hn::Gt(magnitude, hn::Set(di, kInfinity)), nan, infinite);
      code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, kInfinity)), code, special);
    }
    auto byte = hn::BitCast(du, code);
    if constexpr (kSigned) {
      const auto sign = hn::And(hn::BitCast(du, bits), hn::Set(du, 0x80000000));
      byte = hn::Or(byte, hn::ShiftRight<24>(sign));
    }
    return hn::TruncateTo(d8, byte);
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(code_at(i), d8, codes + i);
  if (i < count) store_n(code_at(i), d8, codes + i, static_cast<size_t>(count - i));
}

template <bool kSecond>
HWY_INLINE void narrow_bf16(const float* HWY_RESTRICT from, const uint32_t* HWY_RESTRICT words,
                            int64_t count, uint16_t* HWY_RESTRICT to, const float* soon) {
  const F d;
  const I di;
  const U du;
  const hn::Rebind<uint16_t, F> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto rounded = [&](int64_t i) HWY_ATTR {
    hwy::Prefetch(soon + i);
    const auto x = hn::LoadU(d, from + i);
    const auto bits = hn::BitCast(du, x);
    const auto noise = hn::BitCast(du, random16<kSecond>(di, words + i));
    const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
    const auto sum = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, hn::Add(bits, noise));
    return hn::TruncateTo(d16, hn::ShiftRight<16>(sum));
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(rounded(i), d16, to + i);
  if (i < count) store_n(rounded(i), d16, to + i, static_cast<size_t>(count - i));
}

template <bool kSigned>
HWY_INLINE void widen_blocks(const NarrowMoment& m, int64_t begin, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kBlockFloats) {
    const int32_t bits = std::bit_cast<int32_t>(m.scales_in[(begin + i) / kBlockFloats]);
    widen_block<kSigned>(static_cast<const uint8_t*>(m.in) + begin + i, bits >> 23,
                         std::min(kBlockFloats, count - i), to + i);
  }
}

void widen(const NarrowMoment& m, int64_t begin, int64_t count, float* to) {
  if (m.dtype == DType::i8) return widen_blocks<true>(m, begin, count, to);
  if (m.dtype == DType::u8) return widen_blocks<false>(m, begin, count, to);
  const F d;
  const auto* from = static_cast<const Bf16*>(m.in) + begin;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(load(d, from + i), d, to + i);
  if (i < count) hn::StoreU(load_n(d, from + i, static_cast<size_t>(count - i)), d, to + i);
}

template <bool kSigned, bool kSecond>
HWY_INLINE void narrow_blocks(const float* from, const uint32_t* words, int64_t begin,
                              int64_t count, const NarrowMoment& m, const float* soon) {
  for (int64_t i = 0; i < count; i += kBlockFloats) {
    const int64_t extent = std::min(kBlockFloats, count - i);
    auto* codes = static_cast<uint8_t*>(m.out) + begin + i;
    const int32_t greatest = greatest_bits<false>(from + i, extent);
    const bool finite = greatest < kInfinity;
    const int32_t scale = float8_scale(finite ? greatest : greatest_bits<true>(from + i, extent));
    m.scales_out[(begin + i) / kBlockFloats] = std::bit_cast<float>(scale << 23);
    if (finite && scale < Float8Format::kGreatestScale) {
      narrow_block<kSigned, kSecond, false>(from + i, words + i, scale, extent, codes, soon + i);
    } else {
      narrow_block<kSigned, kSecond, true>(from + i, words + i, scale, extent, codes, soon + i);
    }
  }
}

template <bool kSecond>
HWY_INLINE void narrow_by_type(const float* from, const uint32_t* words, int64_t begin,
                               int64_t count, const NarrowMoment& m, const float* soon) {
  if (m.dtype == DType::i8) return narrow_blocks<true, kSecond>(from, words, begin, count, m, soon);
  if (m.dtype == DType::u8) {
    return narrow_blocks<false, kSecond>(from, words, begin, count, m, soon);
  }
  narrow_bf16<kSecond>(from, words, count, static_cast<uint16_t*>(m.out) + begin, soon);
}

void narrow(const float* from, const uint32_t* words, bool second, int64_t begin, int64_t count,
            const NarrowMoment& m, const float* soon) {
  if (second) return narrow_by_type<true>(from, words, begin, count, m, soon);
  narrow_by_type<false>(from, words, begin, count, m, soon);
}

void round_all(const float* from, int64_t count, uint16_t* bits) {
  auto* to = reinterpret_cast<Bf16*>(bits);
  const F d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) store(hn::LoadU(d, from + i), d, to + i);
  if (i < count) store_n(hn::LoadU(d, from + i), d, to + i, static_cast<size_t>(count - i));
}

/// Two rounds of multiplication and shifts of a counter, under a key of Philox for each part: a
/// word a lane for a fifth of Philox's time (the function is Wellons' lowbias32).
void draw(const int64_t* seed, int64_t stream, int64_t begin, int64_t count, uint32_t* words) {
  const U du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du));
  const PhiloxWords key = philox_group(seed, stream, static_cast<uint64_t>(begin / kNarrowPart));
  auto counter = hn::Add(hn::Mul(hn::Iota(du, 0), hn::Set(du, kPhiloxW0)), hn::Set(du, key[0]));
  const auto step = hn::Set(du, kPhiloxW0 * static_cast<uint32_t>(lanes));
  for (int64_t i = 0; i < count; i += lanes) {
    auto x = hn::Xor(counter, hn::ShiftRight<16>(counter));
    x = hn::Xor(hn::Mul(x, hn::Set(du, 0x7FEB352D)), hn::Set(du, key[1]));
    x = hn::Xor(x, hn::ShiftRight<15>(x));
    x = hn::Mul(x, hn::Set(du, 0x846CA68B));
    hn::StoreU(hn::Xor(x, hn::ShiftRight<16>(x)), du, words + i);
    counter = hn::Add(counter, step);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {

HWY_EXPORT(widen);
HWY_EXPORT(narrow);
HWY_EXPORT(round_all);
HWY_EXPORT(draw);

void widen_moment(const NarrowMoment& moment, int64_t begin, int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(widen)(moment, begin, count, to);
}

void narrow_moment(const float* from, const uint32_t* words, bool second, int64_t begin,
                   int64_t count, const NarrowMoment& moment, const float* soon) {
  HWY_DYNAMIC_DISPATCH(narrow)(from, words, second, begin, count, moment, soon);
}

void round_to_bf16(const float* from, int64_t count, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(round_all)(from, count, to);
}

void draw_words(const int64_t* seed, int64_t stream, int64_t begin, int64_t count,
                uint32_t* words) {
  HWY_DYNAMIC_DISPATCH(draw)(seed, stream, begin, count, words);
}

std::optional<NarrowMoments> NarrowMoments::of(const NodeSpec& node, size_t count,
                                               std::string* why_not) {
  const Operand& param = node.in(0);
  NarrowMoments result;
  result.size_ = param.size();
  result.stream_ = node.attrs.integer("stream");
  result.count_ = count;
  if (node.attrs.has("param_stream")) result.param_stream_ = node.attrs.integer("param_stream");
  result.bf16_param_ = param.dtype == DType::bf16;
  result.bf16_gradient_ = node.in(1).dtype == DType::bf16;
  const auto floats = [](DType t) { return t == DType::f32 || t == DType::bf16; };
  bool fits = floats(param.dtype) && floats(node.in(1).dtype) && node.in(1).dims == param.dims;
  for (size_t i = 0; i < count; ++i) {
    const Operand& moment = node.in(StepInputs::kFirstState + i);
    const Operand& scales = node.in(StepInputs::kFirstState + count + i);
    const bool codes = moment.dtype == DType::i8 || moment.dtype == DType::u8;
    const bool has_scales =
        scales.dtype == DType::f32 && scales.dims == Dims{float_blocks(param.size())};
    fits = fits && moment.dims == param.dims &&
           (codes ? has_scales : moment.dtype == DType::bf16 && !scales.present());
    result.dtypes_[i] = moment.dtype;
  }
  const Operand& seed = node.in(StepInputs::kFirstState + 2 * count);
  fits = fits && seed.dtype == DType::i64 && seed.size() == 2;
  if (fits) return result;
  *why_not =
      "moments must be bfloat16, or int8 or uint8 with their scales, of a parameter of float32 or "
      "bfloat16";
  return std::nullopt;
}

std::vector<std::pair<int, int>> NarrowMoments::shared() const {
  std::vector<std::pair<int, int>> pairs{{0, 0}};
  for (size_t i = 0; i < 2 * count_; ++i) {
    const bool absent = i >= count_ && dtypes_[i - count_] == DType::bf16;
    if (!absent)
      pairs.emplace_back(static_cast<int>(StepInputs::kFirstState + i), static_cast<int>(1 + i));
  }
  return pairs;
}

NarrowMoment NarrowMoments::moment(const KernelArgs& args, size_t i) const {
  const bool scales = dtypes_[i] != DType::bf16;
  return {.dtype = dtypes_[i],
          .in = args.in[StepInputs::kFirstState + i],
          .scales_in = scales ? args.input<float>(StepInputs::kFirstState + count_ + i) : nullptr,
          .out = args.out[1 + i],
          .scales_out = scales ? args.output<float>(1 + count_ + i) : nullptr};
}

void NarrowMoments::read(const KernelArgs& args, int64_t i, Part& part) const {
  part.begin = i * kNarrowPart;
  part.count = std::min(kNarrowPart, size_ - part.begin);
  const auto operand = [&](size_t input, bool bf16, float* copy) -> const float* {
    if (!bf16) return args.input<float>(input) + part.begin;
    widen_moment({DType::bf16, args.in[input], nullptr, nullptr, nullptr}, part.begin, part.count,
                 copy);
    return copy;
  };
  part.in = {operand(0, bf16_param_, part.param.data()),
             operand(1, bf16_gradient_, part.gradient.data()), args.in[StepInputs::kLr],
             args.in[StepInputs::kStep], args.in[StepInputs::kGradScale]};
  part.out = {bf16_param_ ? part.param.data() : args.output<float>(0) + part.begin};
  for (size_t m = 0; m < count_; ++m) {
    float* moment_now = part.moments[m].data();
    widen_moment(moment(args, m), part.begin, part.count, moment_now);
    part.in[StepInputs::kFirstState + m] = moment_now;
    part.out[1 + m] = moment_now;
  }
}

void NarrowMoments::write(const KernelArgs& args, Part& part) const {
  const auto* seed = args.input<int64_t>(StepInputs::kFirstState + 2 * count_);
  draw_words(seed, stream_, part.begin, part.count, part.words.data());
  // Meanwhile memory sends what the next part reads: parameters, then gradients.
  const bool last = bf16_param_ || bf16_gradient_ || part.begin + 2 * kNarrowPart > size_;
  for (size_t m = 0; m < count_; ++m) {
    const float* moments = part.moments[m].data();
    const float* soon = last ? moments : args.input<float>(m) + part.begin + kNarrowPart;
    narrow_moment(moments, part.words.data(), m == 1, part.begin, part.count, moment(args, m),
                  soon);
  }
  if (bf16_param_) write_param(args, part);
}

void NarrowMoments::write_param(const KernelArgs& args, Part& part) const {
  const float* param = part.param.data();
  auto* to = static_cast<uint16_t*>(args.out[0]);
  if (param_stream_ == 0) return round_to_bf16(param, part.count, to + part.begin);
  const auto* seed = args.input<int64_t>(StepInputs::kFirstState + 2 * count_);
  draw_words(seed, param_stream_, part.begin, part.count, part.words.data());
  narrow_moment(param, part.words.data(), false, part.begin, part.count,
                {DType::bf16, nullptr, nullptr, to, nullptr}, param);
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
