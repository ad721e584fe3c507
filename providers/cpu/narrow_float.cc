#include "providers/cpu/narrow_float.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "steep/error.h"

namespace steep::cpu {
namespace {

/// A format with sign, exponent and mantissa. Without the sign, the bit patterns in ascending order
/// are: numbers up to `largest`, then infinity if there is one, then NaN.
struct Format {
  int mantissa;  // bits
  int bias;
  int sign;            // index of the sign bit
  uint8_t largest;     // bits of the largest number
  bool has_infinity;   // largest + 1 is infinity
  bool has_nan;        // NaN is 0x7F or, without -0, the pattern of -0
  bool unsigned_zero;  // no -0: its pattern is NaN
};

const Format& format_of(DType dtype) {
  static constexpr Format kE4m3fn{3, 7, 7, 0x7E, false, true, false};
  static constexpr Format kE4m3fnuz{3, 8, 7, 0x7F, false, true, true};
  static constexpr Format kE5m2{2, 15, 7, 0x7B, true, true, false};
  static constexpr Format kE5m2fnuz{2, 16, 7, 0x7F, false, true, true};
  static constexpr Format kE2m3{3, 1, 5, 0x1F, false, false, false};
  static constexpr Format kE3m2{2, 3, 5, 0x1F, false, false, false};
  static constexpr Format kE2m1{1, 1, 3, 0x7, false, false, false};
  switch (dtype) {
    case DType::f8e4m3fn: return kE4m3fn;
    case DType::f8e4m3fnuz: return kE4m3fnuz;
    case DType::f8e5m2: return kE5m2;
    case DType::f8e5m2fnuz: return kE5m2fnuz;
    case DType::f6e2m3: return kE2m3;
    case DType::f6e3m2: return kE3m2;
    case DType::f4e2m1: return kE2m1;
    default: break;
  }
  throw InternalError(
      {.what = "A dtype is not a narrow float.", .received = std::string(name_of(dtype))});
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float value_of(const Format& f, unsigned bits) {
  const bool negative = (bits >> f.sign & 1) != 0;
  const unsigned magnitude = bits & ((1U << f.sign) - 1);
  if (f.unsigned_zero && negative && magnitude == 0) return kNaN;
  float value = kNaN;
  if (magnitude <= f.largest) {
    const unsigned exponent = magnitude >> f.mantissa;
    const unsigned fraction = magnitude & ((1U << f.mantissa) - 1);
    const unsigned one = exponent == 0 ? 0 : 1U << f.mantissa;
    value = std::ldexp(static_cast<float>(one + fraction),
                       static_cast<int>(exponent == 0 ? 1 : exponent) - f.bias - f.mantissa);
  } else if (f.has_infinity && magnitude == f.largest + 1U) {
    value = std::numeric_limits<float>::infinity();
  }
  return negative ? -value : value;
}

std::array<float, 256> table_of(DType dtype) {
  std::array<float, 256> table{};
  for (unsigned bits = 0; bits < 256; ++bits) {
    if (dtype != DType::f8e8m0) {
      table[bits] = value_of(format_of(dtype), bits);
    } else {
      table[bits] = bits == 255 ? kNaN : std::ldexp(1.0F, static_cast<int>(bits) - 127);
    }
  }
  return table;
}

uint8_t bits_in(const Format& f, double x, bool saturate) {
  const unsigned sign = std::signbit(x) ? 1U << f.sign : 0;
  const unsigned nan = f.unsigned_zero ? 1U << f.sign : sign | 0x7F;
  if (std::isnan(x)) {
    if (!f.has_nan) return static_cast<uint8_t>((sign ^ (1U << f.sign)));  // as ml_dtypes does
    return static_cast<uint8_t>(f.has_infinity ? sign | 0x7E : nan);
  }
  unsigned magnitude = f.largest + 1U;
  if (std::isfinite(x) && std::abs(x) < 0x1p20) {
    // The number in units of the last place at this exponent. Rounding up to the next power of two
    // carries into the exponent.
    const int exponent = x == 0 ? 1 - f.bias : std::max(std::ilogb(x), 1 - f.bias);
    const double units = std::nearbyint(std::ldexp(std::abs(x), f.mantissa - exponent));
    magnitude =
        (static_cast<unsigned>(exponent + f.bias - 1) << f.mantissa) + static_cast<unsigned>(units);
  }
  if (magnitude > f.largest) {
    if (saturate || !f.has_nan) {
      magnitude = f.largest;
    } else {
      return static_cast<uint8_t>(f.has_infinity ? sign | (f.largest + 1U) : nan);
    }
  }
  return static_cast<uint8_t>(f.unsigned_zero && magnitude == 0 ? 0 : sign | magnitude);
}

/// A power of two as its exponent. Drops the sign.
uint8_t e8m0_bits(double x, Rounding rounding) {
  constexpr uint8_t kNaNBits = 255;
  constexpr uint8_t kLargest = 254;
  if (std::isnan(x)) return kNaNBits;
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(std::abs(x)));
  const uint32_t exponent = bits >> 23;
  const uint32_t fraction = bits & 0x7FFFFF;
  if (exponent == 255) return rounding.saturate ? kLargest : kNaNBits;
  if (bits < 0x00400000 && !rounding.saturate) return kNaNBits;  // below 2^-127
  bool up = false;
  if (rounding.mode == Rounding::Mode::up) up = fraction != 0;
  if (rounding.mode == Rounding::Mode::nearest)
    up = fraction >= (exponent == 0 ? 0x400001 : 0x400000);
  const uint32_t rounded = exponent + (up ? 1 : 0);
  return static_cast<uint8_t>(rounding.saturate && rounded > kLargest ? kLargest : rounded);
}

}  // namespace

std::optional<Rounding::Mode> rounding_mode(std::string_view name) {
  if (name == "up") return Rounding::Mode::up;
  if (name == "down") return Rounding::Mode::down;
  if (name == "nearest") return Rounding::Mode::nearest;
  return std::nullopt;
}

const float* narrow_values(DType dtype) {
  constexpr auto kFirst = static_cast<size_t>(DType::f8e4m3fn);
  constexpr auto kLast = static_cast<size_t>(DType::f6e3m2);
  static const auto kTables = [] {
    std::array<std::array<float, 256>, kLast - kFirst + 1> tables{};
    for (size_t i = 0; i < tables.size(); ++i) {
      const auto narrow = static_cast<DType>(kFirst + i);
      if (is_narrow_float(narrow)) tables[i] = table_of(narrow);
    }
    return tables;
  }();
  if (!is_narrow_float(dtype)) format_of(dtype);  // throws
  return kTables[static_cast<size_t>(dtype) - kFirst].data();
}

uint8_t narrow_bits(DType dtype, double x, Rounding rounding) {
  if (dtype == DType::f8e8m0) return e8m0_bits(x, rounding);
  return bits_in(format_of(dtype), x, rounding.saturate);
}

}  // namespace steep::cpu
