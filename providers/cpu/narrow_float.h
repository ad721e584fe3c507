// Floats of 4, 6 and 8 bits: quantised data, read and written as numbers by conversions only.
// Formats: OCP 8-bit floating point and microscaling; `fnuz` as ONNX's Cast has them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "steep/dtype.h"

namespace steep::cpu {

/// What becomes of a number that a narrow float does not hold.
struct Rounding {
  enum class Mode : uint8_t { up, down, nearest };
  bool saturate = true;  ///< out of range: the largest number; otherwise infinity or NaN
  Mode mode = Mode::up;  ///< of float8_e8m0fnu; all others round to nearest even
};

/// ONNX's round_mode; nothing when there is none of that name.
std::optional<Rounding::Mode> rounding_mode(std::string_view name);

/// The numbers of a narrow float's bits: a table of 256, those past its width repeated. REQUIRES:
/// is_narrow_float(dtype).
const float* narrow_values(DType dtype);

/// The bits nearest to x.
uint8_t narrow_bits(DType dtype, double x, Rounding rounding = {});

}  // namespace steep::cpu
