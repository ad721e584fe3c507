// How ONNX lays elements narrower than a byte into bytes: one stream of bits, lowest first.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// Bytes that `count` elements take in a file.
size_t packed_bytes(DType dtype, int64_t count);

/// A tensor of one byte an element (or wider) from `bytes`, packed_bytes() of them.
Tensor unpack(DType dtype, Dims dims, const void* bytes);

/// The bytes of a tensor as a file holds them: itself where nothing is narrower than a byte.
Tensor pack(const Tensor& tensor);

}  // namespace steep
