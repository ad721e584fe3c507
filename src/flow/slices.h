// Splits and joins tensors, for loops and sequences.
#pragma once

#include <span>
#include <vector>

#include "steep/tensor.h"

namespace steep {

/// Elements [begin, begin + count) along `axis`; a view if they are contiguous. REQUIRES: in range.
Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t count);
/// Concatenates the parts along `axis`. Throws ShapeError if other extents differ, DataError if
/// there are no parts or dtypes differ.
Tensor concat(std::span<const Tensor> parts, int64_t axis);
/// x with an additional axis of extent 1. REQUIRES: 0 <= axis <= rank.
Tensor with_axis(const Tensor& x, int64_t axis);
/// x without an axis. REQUIRES: its extent is 1.
Tensor without_axis(const Tensor& x, int64_t axis);

}  // namespace steep
