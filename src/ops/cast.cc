// y = x as another type; between float types the gradient is cast back
#include "ops/build.h"

namespace steep {
namespace {

Grads cast_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {is_float(x.dtype()) ? cast_like(dy[0], x) : Value()};
}

}  // namespace

extern const OpDef kCast = {.name = "Cast", .elementwise = true, .vjp = cast_vjp};

}  // namespace steep
