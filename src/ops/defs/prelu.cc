// y = x < 0 ? slope x : x. He et al. 2015
#include "ops/build.h"

namespace steep {
namespace {

Grads prelu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), slope = n.input(1);
  Value positive = greater(x, 0);
  return {where(positive, dy[0], dy[0] * slope), where(positive, 0, dy[0] * x)};
}

}  // namespace

extern const OpDef kPRelu = {.name = "PRelu", .elementwise = true, .vjp = prelu_vjp};

}  // namespace steep
