// y = Σ x²
#include "ops/defs/reduce.h"

namespace steep {
namespace {

Grads reduce_sum_square_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {2.0 * x * with_reduced_axes(n, dy[0])};
}

}  // namespace

extern const OpDef kReduceSumSquare = {.name = "ReduceSumSquare",
                                       .attributes = kReduceAttributes,
                                       .vjp = reduce_sum_square_vjp,
                                       .refine = reduce_refine};

}  // namespace steep
