// ONNX's packing of elements narrower than a byte: a stream of bits, lowest first.
#pragma once

#include <cstdint>

#include "steep/tensor.h"

namespace steep {

/// The bytes of `count` elements in a file.
size_t packed_bytes(DType dtype, int64_t count);

/// Writes `count` elements of fewer than 8 bits, one a byte.
void unpack(DType dtype, int64_t count, const uint8_t* from, uint8_t* to);

/// A tensor with at least one byte per element, from packed_bytes() bytes.
Tensor unpack(DType dtype, Dims dims, const void* bytes);

/// The bytes of a tensor in the layout of a file; the tensor itself if no element is narrower than
/// a byte.
Tensor pack(const Tensor& tensor);

}  // namespace steep
