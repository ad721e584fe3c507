// Whether numbers are numbers.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// Whether no element of a tensor of floats is NaN or infinite. Other dtypes: true.
bool all_finite(const Tensor& tensor);

}  // namespace steep
