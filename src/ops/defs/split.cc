// Cuts x along one axis
#include "ops/build.h"
#include "ops/parts_in_place.h"

namespace steep {
namespace {

Grads split_vjp(Node n, const Grads& dy) {
  Grads parts = dy;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i]) parts[i] = zeros_like(n.output(static_cast<int>(i)));
  }
  return {concat(parts, integer_of(n, "axis"))};
}

/// Sets the types of parts whose sizes are computed: all other extents are those of the input.
void split_refine(Node n) {
  const Value x = n.input(0);
  if (!x.type().shape) return;
  Shape part = x.shape();
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), x.rank());
  part[static_cast<size_t>(axis)] = Dim();
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    if (y && !y.type().shape) n.graph().set_type(y, {y.dtype(), part});
  }
}

Ints split_view_offsets(Node n) {
  const Value x = n.input(0);
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), x.rank());
  const auto bytes = contiguous_bytes(x, axis);
  if (!bytes) return {};
  Ints offsets;
  int64_t rows = 0;
  bool known = true;
  for (int i = 0; i < n.output_count(); ++i) {
    if (n.output(i) && !known) return {};
    offsets.push_back(rows * *bytes);
    known = known && n.output(i);
    if (known) rows += n.output(i).type().dims()[static_cast<size_t>(axis)];
  }
  return offsets;
}

}  // namespace

extern const OpDef kSplit = {.name = "Split",
                             .attributes = {{"axis", 0}},
                             .vjp = split_vjp,
                             .refine = split_refine,
                             .view_offsets = split_view_offsets};

}  // namespace steep
