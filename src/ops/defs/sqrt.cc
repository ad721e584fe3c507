// y = √x
#include "ops/build.h"

namespace steep {
namespace {

Grads sqrt_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {dy[0] * 0.5 / y};
}

}  // namespace

extern const OpDef kSqrt = {.name = "Sqrt", .elementwise = true, .vjp = sqrt_vjp};

}  // namespace steep
