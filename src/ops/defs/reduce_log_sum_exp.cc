// y = ln Σ eˣ
#include "ops/defs/reduce.h"

namespace steep {
namespace {

Grads reduce_log_sum_exp_vjp(Node n, const Grads& dy) {
  Value y = with_reduced_axes(n, n.output(0));
  return {with_reduced_axes(n, dy[0]) * exp(n.input(0) - y)};
}

}  // namespace

extern const OpDef kReduceLogSumExp = {.name = "ReduceLogSumExp",
                                       .attributes = kReduceAttributes,
                                       .vjp = reduce_log_sum_exp_vjp,
                                       .refine = reduce_refine};

}  // namespace steep
