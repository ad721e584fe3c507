#include "runtime/packing.h"

namespace steep {

size_t packed_bytes(DType dtype, int64_t count) {
  const auto n = static_cast<size_t>(count);
  const auto bits = static_cast<size_t>(bits_of(dtype));
  return bits >= 8 ? n * size_of(dtype) : n / 8 * bits + (n % 8 * bits + 7) / 8;
}

void unpack(DType dtype, int64_t count, const uint8_t* from, uint8_t* to) {
  const int bits = bits_of(dtype);
  int64_t i = 0;
  if (bits == 4) {  // the usual width: two elements a byte
    for (; i + 1 < count; i += 2) {
      const uint8_t pair = *from++;
      to[i] = pair & 15;
      to[i + 1] = pair >> 4;
    }
  }
  uint32_t buffer = 0;  // the next bits of the stream
  int held = 0;
  for (; i < count; ++i) {
    if (held < bits) {
      buffer |= uint32_t{*from++} << held;
      held += 8;
    }
    to[i] = static_cast<uint8_t>(buffer & ((1U << bits) - 1));
    buffer >>= bits;
    held -= bits;
  }
}

Tensor unpack(DType dtype, Dims dims, const void* bytes) {
  Tensor tensor = Tensor::empty(dtype, std::move(dims));
  if (bits_of(dtype) < 8) {
    unpack(dtype, tensor.size(), static_cast<const uint8_t*>(bytes),
           static_cast<uint8_t*>(tensor.data()));
  } else if (tensor.nbytes() != 0) {
    std::memcpy(tensor.data(), bytes, tensor.nbytes());
  }
  return tensor;
}

Tensor pack(const Tensor& tensor) {
  const int bits = bits_of(tensor.dtype());
  if (bits >= 8) return tensor;
  const auto bytes = static_cast<int64_t>(packed_bytes(tensor.dtype(), tensor.size()));
  Tensor packed = Tensor::zeros(DType::u8, {bytes});
  const auto* from = static_cast<const uint8_t*>(tensor.data());
  auto* to = packed.data<uint8_t>();
  int64_t at = 0;  // bits written
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const uint32_t element = (from[i] & ((1U << bits) - 1)) << (at % 8);
    to[at / 8] = static_cast<uint8_t>(to[at / 8] | element);
    if (at % 8 + bits > 8) to[at / 8 + 1] = static_cast<uint8_t>(element >> 8);
    at += bits;
  }
  return packed;
}

}  // namespace steep
