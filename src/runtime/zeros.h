// Zeros that take no memory before they are written.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// Tensor::zeros(); a page of a large one is had from the system when it is first written. Throws
/// OutOfMemoryError.
Tensor untouched_zeros(DType dtype, Dims dims);

}  // namespace steep
