// y = x tanh(softplus(x)). Misra 2019
#include "ops/build.h"

namespace steep {
namespace {

Grads mish_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  Value t = tanh(apply("Softplus", {x}));
  return {dy[0] * (t + x * (1.0 - t * t) * apply("Sigmoid", {x}))};
}

}  // namespace

extern const OpDef kMish = {.name = "Mish", .elementwise = true, .vjp = mish_vjp};

}  // namespace steep
