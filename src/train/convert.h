// Data of another element type than the model's inputs have.
#pragma once

#include <string>

#include "steep/tensor.h"

namespace steep {

/// Whether convert() knows both: integers become what holds them, and floats; floats never
/// integers.
bool converts(DType from, DType to);

/// The tensor as `dtype`; itself where it is that already. Floats are rounded. Throws DataError,
/// naming `name`, where converts() says no, and for integers that do not fit.
Tensor convert(const Tensor& tensor, DType dtype, const std::string& name);

}  // namespace steep
