// Cutting tensors up and putting them together, for loops and sequences.
#pragma once

#include <span>
#include <vector>

#include "steep/tensor.h"

namespace steep {

/// Elements [begin, begin + count) along `axis`; a view where they lie together. REQUIRES: in
/// range.
Tensor slice(const Tensor& x, int64_t axis, int64_t begin, int64_t count);
/// Parts one after the other along `axis`. Throws ShapeError when other extents differ, DataError
/// when there is none or dtypes differ.
Tensor concat(std::span<const Tensor> parts, int64_t axis);
/// x with an axis of extent 1 put in. REQUIRES: 0 <= axis <= rank.
Tensor with_axis(const Tensor& x, int64_t axis);
/// x without an axis. REQUIRES: its extent is 1.
Tensor without_axis(const Tensor& x, int64_t axis);

}  // namespace steep
