// Numbers of users that the step computes with as float32.
#pragma once

#include <cfloat>
#include <cmath>

namespace steep {

/// Whether float32 holds the number: not NaN, and not infinite there, as 1e39 is.
inline bool fits_float32(double number) { return std::abs(number) <= double{FLT_MAX}; }

/// What errors say that they expect.
inline constexpr const char* kRateRange = "a number of at least 0 that is finite in float32";

}  // namespace steep
