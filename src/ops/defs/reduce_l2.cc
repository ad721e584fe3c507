// y = √Σ x²; slope 0 where y = 0, as in PyTorch
#include "ops/defs/reduce.h"

namespace steep {
namespace {

Grads reduce_l2_vjp(Node n, const Grads& dy) {
  Value y = with_reduced_axes(n, n.output(0));
  // Where y = 0 the second derivative does not exist: it is NaN, as in PyTorch.
  return {with_reduced_axes(n, dy[0]) * where(equal(y, 0), 0, n.input(0) / y)};
}

}  // namespace

extern const OpDef kReduceL2 = {.name = "ReduceL2",
                                .attributes = kReduceAttributes,
                                .vjp = reduce_l2_vjp,
                                .refine = reduce_refine};

}  // namespace steep
