// Data of another element type than the model's inputs have.
#pragma once

#include <string>

#include "steep/tensor.h"

namespace steep {

/// Whether convert() knows both: integers become what holds them, and floats; floats of 16, 32 and
/// 64 bits become each other, never integers.
bool converts(DType from, DType to);

/// The tensor as `dtype`; itself where it is that already. Floats are rounded, once, to nearest.
/// Throws DataError, naming `name`, where converts() says no, for integers that do not fit, and for
/// finite numbers that would become infinite.
Tensor convert(const Tensor& tensor, DType dtype, const std::string& name);

}  // namespace steep
