// Compress: slices along an axis, or elements, for which a condition holds.
#include <cstring>

#include "providers/cpu/data_shaped.h"

namespace steep::cpu {

std::vector<Tensor> run_compress(const NodeSpec& node, std::span<const Tensor> inputs) {
  const Tensor& x = inputs[0];
  const Tensor& condition = inputs[1];
  const bool flat = !node.attrs.has("axis");
  const int64_t axis = flat ? 0 : axis_of(node);
  Dims dims = flat ? Dims{x.size()} : x.dims();
  const int64_t extent = dims[static_cast<size_t>(axis)];
  if (condition.dims().size() != 1) {
    throw_misfit(node, "The condition is not a vector.", "one dimension",
                 to_string(condition.dims()));
  }
  std::vector<int64_t> selection;
  const auto* holds = static_cast<const uint8_t*>(condition.data());
  for (int64_t i = 0; i < condition.size(); ++i) {
    if (holds[i] == 0) continue;
    if (i >= extent) {
      NodeId(node).data_error("The condition holds past the end of the axis.",
                              fmt::format("at most {} places", extent), fmt::format("place {}", i));
    }
    selection.push_back(i);
  }
  const int64_t outer = steep::cpu::extent(dims, 0, axis);
  const auto rows = static_cast<int64_t>(selection.size());
  const Dims before = dims;
  dims[static_cast<size_t>(axis)] = rows;
  Tensor y = Tensor::empty(x.dtype(), dims);
  const size_t bytes = static_cast<size_t>(steep::cpu::extent(
                           before, axis + 1, static_cast<int64_t>(before.size()))) *
                       size_of(x.dtype());
  const auto* from = static_cast<const std::byte*>(x.data());
  auto* to = static_cast<std::byte*>(y.data());
  if (y.size() == 0) return {y};
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t row : selection) {
      std::memcpy(to, from + static_cast<size_t>(o * extent + row) * bytes, bytes);
      to += bytes;
    }
  }
  return {y};
}

}  // namespace steep::cpu
