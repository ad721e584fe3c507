// ReduceMax, ReduceMin: elements that attain the extreme share the gradient equally, as in
// torch.amax.
#include "ops/defs/reduce.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads reduce_extreme_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  Value attains = cast_like(equal(x, with_reduced_axes(n, n.output(0))), x);
  Value winners = reduce_alike(n, "ReduceSum", attains);
  return {attains * (with_reduced_axes(n, dy[0]) / winners)};
}

}  // namespace

extern const OpDef kReduceMax = {.name = "ReduceMax",
                                 .attributes = kReduceAttributes,
                                 .vjp = reduce_extreme_vjp,
                                 .refine = reduce_refine,
                                 .elements = elements::reduce_max};
extern const OpDef kReduceMin = {.name = "ReduceMin",
                                 .attributes = kReduceAttributes,
                                 .vjp = reduce_extreme_vjp,
                                 .refine = reduce_refine,
                                 .elements = elements::reduce_min};

}  // namespace steep
