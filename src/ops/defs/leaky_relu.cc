// y = x > 0 ? x : alpha x
#include "ops/build.h"

namespace steep {
namespace {

Grads leaky_relu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  return {where(greater(x, 0), dy[0], dy[0] * alpha)};
}

}  // namespace

extern const OpDef kLeakyRelu = {.name = "LeakyRelu",
                                 .attributes = {{"alpha", 0.01}},
                                 .elementwise = true,
                                 .vjp = leaky_relu_vjp};

}  // namespace steep
