// Conversion between element types: Cast, the loads and stores of the elementwise engine, and
// 16-bit floats.
#pragma once

#include <bit>
#include <cstdint>

#include "steep/dtype.h"

namespace steep::cpu {

// 16-bit floats as bits. Narrowing rounds to nearest even; NaN stays NaN.
inline float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t float_to_bf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7FFFFFFF) > 0x7F800000 ? nan : rounded);
}
/// A bfloat16 element that converts to float when read.
struct Bf16 {
  uint16_t bits;
  operator float() const { return bf16_to_float(bits); }  // NOLINT(google-explicit-constructor)
};

float f16_to_float(uint16_t bits);
uint16_t float_to_f16(float x);

/// dst[i] = src[i] in the other dtype, for n elements. To bool: x != 0. Float to integer truncates
/// and saturates; NaN gives 0. Integer to narrower integer wraps, as does any number to an integer
/// of less than 8 bits. `src` and `dst` may be equal when the sizes are.
using Convert = void (*)(const void* src, void* dst, int64_t n);

/// f32 → bf16 and back, the fastest for this machine (elementwise_simd.cc).
Convert bf16_narrowing();
Convert bf16_widening();
/// f32 → f16 and back, the fastest for this machine.
Convert f16_narrowing();
Convert f16_widening();

/// The conversion; `to` may not be a narrow float, which needs to know how to round
/// (narrow_float.h).
Convert find_convert(DType from, DType to);

}  // namespace steep::cpu
