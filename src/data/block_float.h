// Arrays of floats of 8 bits, with one scale for each block of elements: how optimizers keep
// moments between steps (OptimizerOptions::state_precision).
//
// The dtype of the codes names the format. int8: one bit for the sign, 4 for the exponent, 3 for
// the mantissa. uint8: 5 for the exponent, 3 for the mantissa; for numbers that are not negative.
// As in IEEE 754, exponent 0 is for subnormal numbers, and the greatest one for infinity and NaN.
// A code's number is that of the format, whose greatest octave is [1, 2), times the scale of its
// block. A scale is a power of two, so that numbers that do not change keep their bits, whatever
// the block's other numbers do. It is 0 in a block that was never written: then all numbers are 0.
#pragma once

#include <cstdint>

#include "steep/tensor.h"

namespace steep {

inline constexpr int64_t kBlockFloats = 256;  ///< elements of one scale

inline int64_t float_blocks(int64_t elements) {
  return (elements + kBlockFloats - 1) / kBlockFloats;
}

/// The parts of a format, as the bits of codes and of float32 numbers.
struct Float8Format {
  static constexpr int32_t kMantissa = 3;
  static constexpr int32_t kDropped = 23 - kMantissa;  ///< bits of a float32's mantissa
  static constexpr int32_t kSubnormals = 1 << kMantissa;
  /// The exponents of scales, as in float32. Below, quantities of a block would be subnormal.
  static constexpr int32_t kLeastScale = 40, kGreatestScale = 254;

  bool has_sign;
  /// The exponent of the greatest octave; the next one is that of infinity and NaN.
  constexpr int32_t top() const { return has_sign ? 14 : 30; }
  constexpr int32_t infinity() const { return (top() + 1) << kMantissa; }
  constexpr int32_t nan() const { return infinity() | (kSubnormals - 1); }
  constexpr int32_t greatest() const { return infinity() - 1; }
};

/// The scale's exponent for a block whose greatest finite magnitude has these bits: the least for
/// which that number does not round to infinity.
constexpr int32_t float8_scale(int32_t greatest) {
  const int32_t rounded_up =
      (greatest + (1 << Float8Format::kDropped) - 1) >> 23;  // a mantissa above 1.875 counts as 2
  return rounded_up < Float8Format::kLeastScale      ? Float8Format::kLeastScale
         : rounded_up > Float8Format::kGreatestScale ? Float8Format::kGreatestScale
                                                     : rounded_up;
}

/// Whether a scale is one that narrowed() and kernels write, or 0.
bool is_float8_scale(float scale);

/// Codes of int8 or uint8, and their scales: float32 of [float_blocks(size)].
struct BlockFloats {
  Tensor codes, scales;
};

/// The numbers, as float32 and exactly. REQUIRES: the types above, and scales that are valid.
Tensor widened(const BlockFloats& narrow);

/// Rounds to nearest, ties to even. A uint8 code of a number above 0 is at least 1: no second
/// moment vanishes beside a greater one. Negative numbers become NaN there. `values`: float32.
/// Numbers of widened() are kept exactly.
BlockFloats narrowed(const Tensor& values, DType codes);

}  // namespace steep
