// y = Σ |x|
#include "ops/defs/reduce.h"

namespace steep {
namespace {

Grads reduce_l1_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {slope_of_abs(x) * with_reduced_axes(n, dy[0])};
}

}  // namespace

extern const OpDef kReduceL1 = {.name = "ReduceL1",
                                .attributes = kReduceAttributes,
                                .vjp = reduce_l1_vjp,
                                .refine = reduce_refine};

}  // namespace steep
