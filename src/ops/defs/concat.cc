// Concatenation along one axis; the gradient is split at the boundaries of the inputs.
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads concat_vjp(Node n, const Grads& dy) {
  const int count = n.input_count();
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), n.output(0).rank());
  std::vector<Value> sizes;
  for (int i = 0; i < count; ++i) {
    Value x = n.input(i);
    const Dim& extent = x.shape()[static_cast<size_t>(axis)];
    sizes.push_back(extent.known() ? ints(n.graph(), {extent.value()})
                                   : apply("Shape", {x}, {{"start", axis}, {"end", axis + 1}}));
  }
  Value split = concat(sizes, 0);
  return apply_n("Split", std::vector{dy[0], split}, count, {{"axis", axis}});
}

}  // namespace

extern const OpDef kConcat = {.name = "Concat",
                              .attributes = {{"axis", 0}},
                              .vjp = concat_vjp,
                              .elements = elements::concat,
                              .simplify = input_if_only_one};

}  // namespace steep
