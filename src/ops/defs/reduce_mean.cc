// y = Σ x / count
#include "ops/defs/reduce.h"

namespace steep {
namespace {

Grads reduce_mean_vjp(Node n, const Grads& dy) {
  return {expand_like(with_reduced_axes(n, dy[0]) / reduced_count(n), n.input(0))};
}

}  // namespace

extern const OpDef kReduceMean = {.name = "ReduceMean",
                                  .attributes = kReduceAttributes,
                                  .vjp = reduce_mean_vjp,
                                  .refine = reduce_refine};

}  // namespace steep
