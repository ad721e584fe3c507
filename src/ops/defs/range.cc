// yᵢ = start + i delta. The extent depends on the values of the inputs, so that they have no
// gradient.
#include <algorithm>

#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "steep/error.h"

namespace steep {
namespace {

/// ONNX's inference subtracts integers in their own dtype, which may overflow.
void range_refine(Node n) {
  if (!is_integer(n.output(0).dtype())) return;
  __int128 values[3];
  for (int i = 0; i < 3; ++i) {
    const Tensor* t = constant(n.input(i));
    if (t == nullptr || t->size() != 1) return;
    values[i] = t->to_ints()[0];
  }
  const auto [start, limit, delta] = values;
  if (delta == 0) return;  // the kernel reports the error
  const __int128 away = delta > 0 ? delta - 1 : delta + 1;
  const __int128 count = std::max<__int128>((limit - start + away) / delta, 0);
  if (count > __int128{kFar} * kFar) {
    throw ShapeError({.what = "A range is too long.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "at most 2^60 elements",
                      .received = "more",
                      .remedy = "Check start, limit and delta, or export the model again."});
  }
  n.graph().set_type(n.output(0), {n.output(0).dtype(), Shape{Dim(static_cast<int64_t>(count))}});
}

}  // namespace

extern const OpDef kRange = {.name = "Range",
                             .attributes = {{"stash_type", 1}},
                             .ranks = "e e e",
                             .stops_gradient = true,
                             .refine = range_refine,
                             .elements = elements::range};

}  // namespace steep
