// y = Σ x
#include "ops/reduce.h"

namespace steep {
namespace {

Grads reduce_sum_vjp(Node n, const Grads& dy) {
  return {expand_like(with_reduced_axes(n, dy[0]), n.input(0))};
}

}  // namespace

extern const OpDef kReduceSum = {.name = "ReduceSum", .vjp = reduce_sum_vjp};

}  // namespace steep
