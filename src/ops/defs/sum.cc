// y = Σ xᵢ, broadcast
#include "ops/build.h"
#include "ops/defs/variadic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads sum_vjp(Node n, const Grads& dy) {
  return Grads(static_cast<size_t>(n.input_count()), dy[0]);
}

}  // namespace

extern const OpDef kSum = {.name = "Sum",
                           .elementwise = true,
                           .vjp = sum_vjp,
                           .decompose = few_at_a_time,
                           .simplify = input_if_only_one};

}  // namespace steep
