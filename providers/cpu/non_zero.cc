// NonZero: int64[rank, count], in row-major order; for a scalar int64[0, 0 or 1].
#include "providers/cpu/data_shaped.h"

namespace steep::cpu {
namespace {

/// Row-major indices of the nonzero elements. For f16 and bf16, only zero has all bits except the
/// sign clear.
std::vector<int64_t> places(const Tensor& x) {
  std::vector<int64_t> positions;
  const bool half = x.dtype() == DType::f16 || x.dtype() == DType::bf16;
  with_storage_type(x.dtype(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* p = static_cast<const T*>(x.data());
    for (int64_t i = 0; i < x.size(); ++i) {
      bool set = p[i] != T{};
      if constexpr (std::is_same_v<T, uint16_t>) set = half ? (p[i] & 0x7FFF) != 0 : set;
      if (set) positions.push_back(i);
    }
  });
  return positions;
}

}  // namespace

std::vector<Tensor> run_non_zero(const NodeSpec& node, std::span<const Tensor> inputs) {
  static_cast<void>(node);
  const Tensor& x = inputs[0];
  const std::vector<int64_t> positions = places(x);
  const auto rank = static_cast<int64_t>(x.dims().size());
  const auto count = static_cast<int64_t>(positions.size());
  Tensor y = Tensor::empty(DType::i64, {rank, count});
  int64_t inner = 1;  // elements from one index of the axis to the next
  for (int64_t axis = rank; axis-- > 0;) {
    const int64_t extent = x.dims()[static_cast<size_t>(axis)];
    for (int64_t i = 0; i < count; ++i) {
      y.data<int64_t>()[axis * count + i] = positions[static_cast<size_t>(i)] / inner % extent;
    }
    inner *= extent;
  }
  return {y};
}

}  // namespace steep::cpu
