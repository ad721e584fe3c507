// A check for NaN and infinity.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// Whether no element of a float tensor is NaN or infinite. True for other dtypes.
bool all_finite(const Tensor& tensor);

}  // namespace steep
