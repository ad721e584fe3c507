// Tensors of zeros that use no memory before they are written.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// Like Tensor::zeros(), but the system allocates the pages of a large tensor when they are first
/// written. Throws OutOfMemoryError.
Tensor untouched_zeros(DType dtype, Dims dims);

}  // namespace steep
