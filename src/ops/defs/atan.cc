// y = arctan x
#include "ops/build.h"

namespace steep {
namespace {

Grads atan_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] / (1.0 + x * x)};
}

}  // namespace

extern const OpDef kAtan = {.name = "Atan", .elementwise = true, .vjp = atan_vjp};

}  // namespace steep
