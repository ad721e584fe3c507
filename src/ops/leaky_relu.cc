// y = x > 0 ? x : alpha x
#include "ops/build.h"

namespace steep {
namespace {

Grads leaky_relu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = n.attrs().real("alpha", 0.01);
  return {where(greater(x, 0), dy[0], dy[0] * alpha)};
}

}  // namespace

extern const OpDef kLeakyRelu = {.name = "LeakyRelu", .elementwise = true, .vjp = leaky_relu_vjp};

}  // namespace steep
