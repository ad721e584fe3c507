#include "data/block_float.h"

#include <algorithm>
#include <bit>
#include <span>

namespace steep {
namespace {

constexpr int32_t kInfinity = 0x7F800000;

int32_t bits_of(float x) { return std::bit_cast<int32_t>(x); }
float float_of(int32_t bits) { return std::bit_cast<float>(bits); }

/// The number of a code in a block whose scale has this exponent.
float number(uint8_t code, Float8Format format, int32_t scale) {
  constexpr int kDropped = Float8Format::kDropped;
  const int32_t magnitude = format.has_sign ? code & 0x7F : code;
  const bool negative = format.has_sign && code > 0x7F;
  float x = 0;
  if (magnitude >= format.infinity()) {
    x = float_of(magnitude << kDropped | kInfinity);
  } else if (magnitude >= Float8Format::kSubnormals) {
    x = float_of((magnitude << kDropped) + ((scale - format.top()) << 23));
  } else {
    const float least = float_of((scale - format.top() + 1) << 23);  // the least normal number
    x = least * static_cast<float>(magnitude) / Float8Format::kSubnormals;
  }
  return negative ? -x : x;
}

/// The code nearest to a number.
uint8_t code_of(float x, Float8Format format, int32_t scale) {
  constexpr int kDropped = Float8Format::kDropped;
  const int32_t magnitude = bits_of(x) & 0x7FFFFFFF;
  const bool negative = bits_of(x) < 0;
  const int32_t sign = format.has_sign && negative ? 0x80 : 0;
  if (magnitude > kInfinity || (!format.has_sign && negative && magnitude != 0))
    return static_cast<uint8_t>(format.nan() | sign);
  if (magnitude == kInfinity) return static_cast<uint8_t>(format.infinity() | sign);
  // A subnormal number becomes one of the lowest octave of normal numbers, whose mantissa is it.
  const int32_t lowest = (scale - format.top() + 1) << 23;
  const bool subnormal = magnitude < lowest;
  const int32_t lifted = subnormal ? bits_of(float_of(magnitude) + float_of(lowest)) : magnitude;
  const int32_t half = (1 << (kDropped - 1)) - 1 + (lifted >> kDropped & 1);
  int32_t code = ((lifted + half) >> kDropped) - (scale - format.top()) * Float8Format::kSubnormals;
  if (subnormal) code -= Float8Format::kSubnormals;
  const int32_t least = format.has_sign || magnitude == 0 ? 0 : 1;
  return static_cast<uint8_t>(std::clamp(code, least, format.greatest()) | sign);
}

Float8Format format_of(DType dtype) { return {.has_sign = dtype == DType::i8}; }

}  // namespace

bool is_float8_scale(float scale) {
  const int32_t exponent = bits_of(scale) >> 23;
  return bits_of(scale) == 0 ||
         (bits_of(scale) == exponent << 23 && exponent >= Float8Format::kLeastScale &&
          exponent <= Float8Format::kGreatestScale);
}

Tensor widened(const BlockFloats& narrow) {
  const Float8Format format = format_of(narrow.codes.dtype());
  Tensor values = Tensor::zeros(DType::f32, narrow.codes.dims());
  const auto* codes = static_cast<const uint8_t*>(narrow.codes.data());
  const auto* scales = narrow.scales.data<float>();
  auto* to = values.data<float>();
  for (int64_t i = 0; i < values.size(); ++i) {
    const int32_t scale = bits_of(scales[i / kBlockFloats]) >> 23;
    if (scale != 0) to[i] = number(codes[i], format, scale);
  }
  return values;
}

BlockFloats narrowed(const Tensor& values, DType codes) {
  const Float8Format format = format_of(codes);
  const int64_t size = values.size();
  BlockFloats result{Tensor::zeros(codes, values.dims()),
                     Tensor::zeros(DType::f32, {float_blocks(size)})};
  const auto* from = values.data<float>();
  auto* to = static_cast<uint8_t*>(result.codes.data());
  auto* scales = result.scales.data<float>();
  for (int64_t begin = 0; begin < size; begin += kBlockFloats) {
    const auto count = static_cast<size_t>(std::min(kBlockFloats, size - begin));
    int32_t greatest = 0;
    for (const float x : std::span(from + begin, count)) {
      const int32_t magnitude = bits_of(x) & 0x7FFFFFFF;
      if (magnitude < kInfinity) greatest = std::max(greatest, magnitude);
    }
    const int32_t scale = float8_scale(greatest);
    scales[begin / kBlockFloats] = float_of(scale << 23);
    for (size_t i = 0; i < count; ++i)
      to[begin + static_cast<int64_t>(i)] =
          code_of(from[begin + static_cast<int64_t>(i)], format, scale);
  }
  return result;
}

}  // namespace steep
