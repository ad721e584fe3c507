// float32 to bfloat16 and back, by bits.
#pragma once

#include <bit>
#include <cstdint>

namespace steep {

/// Rounded to nearest even; NaN stays NaN.
inline uint16_t to_bfloat16(float wide) {
  const auto bits = std::bit_cast<uint32_t>(wide);
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  const uint32_t rounded = nan ? bits | 0x400000 : bits + 0x7FFF + (bits >> 16 & 1);
  return static_cast<uint16_t>(rounded >> 16);
}

inline float from_bfloat16(uint16_t narrow) {
  return std::bit_cast<float>(static_cast<uint32_t>(narrow) << 16);
}

}  // namespace steep
