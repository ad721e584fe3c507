// y = x clip(x / 6 + 1/2, 0, 1). Howard et al. 2019
#include "ops/build.h"

namespace steep {
namespace {

Grads hard_swish_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  Value ramp = where(less_or_equal(x, -3), 0, x / 3.0 + 0.5);
  Value above = apply("GreaterOrEqual", {x, scalar(x.graph(), 3, x.dtype())});
  return {dy[0] * where(above, 1, ramp)};
}

}  // namespace

extern const OpDef kHardSwish = {.name = "HardSwish", .elementwise = true, .vjp = hard_swish_vjp};

}  // namespace steep
