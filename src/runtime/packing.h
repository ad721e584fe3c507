// ONNX's packing of elements narrower than a byte: a stream of bits, lowest first.
#pragma once

#include "steep/tensor.h"

namespace steep {

/// The bytes of `count` elements in a file.
size_t packed_bytes(DType dtype, int64_t count);

/// A tensor with at least one byte per element, from packed_bytes() bytes.
Tensor unpack(DType dtype, Dims dims, const void* bytes);

/// The bytes of a tensor in the layout of a file; the tensor itself if no element is narrower than
/// a byte.
Tensor pack(const Tensor& tensor);

}  // namespace steep
