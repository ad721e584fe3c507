// A check for NaN and infinity.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// Whether no element of a float tensor is NaN or infinite. True for other dtypes.
bool all_finite(const Tensor& tensor);

/// The number; a NaN without the sign that x86 gives it, so that it prints as "nan".
double without_nan_sign(double number);
/// The only element of a float32 or float64 tensor, without_nan_sign().
double scalar_of(const Tensor& tensor);

}  // namespace steep
