// Converts data to the dtype of a model's input.
#pragma once

#include <string>

#include "steep/tensor.h"

namespace steep {

/// Whether convert() supports these dtypes: integers to integers and floats; floats of 16, 32 and
/// 64 bits to each other, but never to integers.
bool converts(DType from, DType to);

/// The tensor as `dtype`; the same tensor if it has that dtype. Floats are rounded once, to
/// nearest. Throws DataError, which names `name`, if converts() is false, for integers that do not
/// fit, and for finite numbers that would become infinite.
Tensor convert(const Tensor& tensor, DType dtype, const std::string& name);

}  // namespace steep
