// y = Σ x / count
#include "ops/reduce.h"

namespace steep {
namespace {

Grads reduce_mean_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  Value ones = expand_like(scalar(n.graph(), 1, x.dtype()), x);
  Value count = reduce_alike(n, "ReduceSum", ones);
  return {expand_like(with_reduced_axes(n, dy[0]) / count, x)};
}

}  // namespace

extern const OpDef kReduceMean = {.name = "ReduceMean", .vjp = reduce_mean_vjp};

}  // namespace steep
