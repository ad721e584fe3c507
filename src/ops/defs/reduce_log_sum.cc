// y = ln Σ x
#include "ops/defs/reduce.h"

namespace steep {
namespace {

Grads reduce_log_sum_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {expand_like(with_reduced_axes(n, dy[0]) / reduce_alike(n, "ReduceSum", x), x)};
}

}  // namespace

extern const OpDef kReduceLogSum = {.name = "ReduceLogSum",
                                    .attributes = kReduceAttributes,
                                    .vjp = reduce_log_sum_vjp,
                                    .refine = reduce_refine};

}  // namespace steep
