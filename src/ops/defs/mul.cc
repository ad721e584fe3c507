// y = a b
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads mul_vjp(Node n, const Grads& dy) {
  Value a = n.input(0), b = n.input(1);
  return {dy[0] * b, dy[0] * a};
}

Value mul_simplify(Node n) { return beside_neutral(n, 1, true); }

}  // namespace

extern const OpDef kMul = {.name = "Mul",
                           .elementwise = true,
                           .vjp = mul_vjp,
                           .elements = elements::mul,
                           .simplify = mul_simplify};

}  // namespace steep
