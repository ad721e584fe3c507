// y = a b
#include "ops/build.h"

namespace steep {
namespace {

Grads mul_vjp(Node n, const Grads& dy) {
  Value a = n.input(0), b = n.input(1);
  return {dy[0] * b, dy[0] * a};
}

}  // namespace

extern const OpDef kMul = {.name = "Mul", .elementwise = true, .vjp = mul_vjp};

}  // namespace steep
