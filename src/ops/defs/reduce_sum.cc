// y = Σ x
#include "ops/defs/reduce.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads reduce_sum_vjp(Node n, const Grads& dy) {
  return {expand_like(with_reduced_axes(n, dy[0]), n.input(0))};
}

}  // namespace

extern const OpDef kReduceSum = {.name = "ReduceSum",
                                 .attributes = kReduceAttributes,
                                 .vjp = reduce_sum_vjp,
                                 .refine = reduce_refine,
                                 .elements = elements::reduce_sum};

}  // namespace steep
