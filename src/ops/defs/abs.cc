// y = |x|; slope 0 at 0 and at NaN
#include "ops/build.h"

namespace steep {
namespace {

Grads abs_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] * slope_of_abs(x)};
}

}  // namespace

extern const OpDef kAbs = {.name = "Abs", .elementwise = true, .vjp = abs_vjp};

}  // namespace steep
