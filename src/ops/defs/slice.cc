// y = x[starts:ends:steps] along `axes`
#include <algorithm>

#include "ops/build.h"
#include "ops/parts_in_place.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads slice_vjp(Node n, const Grads& dy) {
  return {apply("steep.SliceGrad",
                {dy[0], shape_of(n.input(0)), n.input(1), n.input(2), n.input(3), n.input(4)})};
}

Ints slice_view_offset(Node n) {
  const Value x = n.input(0);
  const Tensor *starts = constant(n.input(1)), *axes = constant(n.input(3)),
               *steps = constant(n.input(4));
  if (starts == nullptr || starts->size() != 1 || (n.input(3) && axes == nullptr) ||
      (n.input(4) && (steps == nullptr || steps->to_ints()[0] != 1))) {
    return {};
  }
  const int64_t axis = normal_axis(n, axes != nullptr ? axes->to_ints()[0] : 0, x.rank());
  const auto bytes = contiguous_bytes(x, axis);
  if (!bytes) return {};
  const int64_t extent = x.type().dims()[static_cast<size_t>(axis)];
  int64_t start = starts->to_ints()[0];
  if (start < 0) start += extent;
  return {std::clamp<int64_t>(start, 0, extent) * *bytes};
}

}  // namespace

extern const OpDef kSlice = {.name = "Slice",
                             .vjp = slice_vjp,
                             .elements = elements::slice,
                             .view_offsets = slice_view_offset};

}  // namespace steep
