#include "ops/parts_in_place.h"

#include <algorithm>

namespace steep {

std::optional<int64_t> contiguous_bytes(Value x, int64_t axis) {
  const Dims dims = x.type().dims();
  const auto at = dims.begin() + axis;
  if (std::any_of(dims.begin(), at, [](int64_t extent) { return extent != 1; })) return {};
  return element_count(Dims(at + 1, dims.end())) * static_cast<int64_t>(size_of(x.dtype()));
}

}  // namespace steep
