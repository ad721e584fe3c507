// Floats of 4, 6 and 8 bits: quantised data, which only conversions read and write as numbers.
// Formats: OCP 8-bit floating point and microscaling; `fnuz` as in ONNX's Cast.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "steep/dtype.h"

namespace steep::cpu {

/// How to round a number that a narrow float cannot hold.
struct Rounding {
  enum class Mode : uint8_t { up, down, nearest };
  bool saturate = true;  ///< out of range gives the largest number; otherwise infinity or NaN
  Mode mode = Mode::up;  ///< for float8_e8m0fnu; all other types round to nearest even
};

/// ONNX's round_mode; nothing for an unknown name.
std::optional<Rounding::Mode> rounding_mode(std::string_view name);

/// The numbers for the 256 values of a byte; bits above the type's width are ignored. REQUIRES:
/// is_narrow_float(dtype).
const float* narrow_values(DType dtype);

/// The bits of the number nearest to x.
uint8_t narrow_bits(DType dtype, double x, Rounding rounding = {});

}  // namespace steep::cpu
