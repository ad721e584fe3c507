// Which constant factors of operands may become factors of a product's result.
#pragma once

#include <cmath>

namespace steep {

/// Whether a product may be scaled by this number in place of its operands. Zero, infinity and NaN
/// give other elements than in the operands, and so do factors that keep a product from overflow.
inline bool may_scale_product(double factor) {
  constexpr double kMost = 4294967296.0;  // 2^32: float32 goes up to 2^128
  const double size = std::abs(factor);
  return size >= 1 / kMost && size <= kMost;  // false for NaN
}

}  // namespace steep
