// y = x as another type; between float types the gradient is cast back
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads cast_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {is_float(x.dtype()) ? cast_like(dy[0], x) : Value()};
}

}  // namespace

extern const OpDef kCast = {.name = "Cast",
                            .attributes = {{"round_mode", "up"}, {"saturate", 1}},
                            .elementwise = true,
                            .vjp = cast_vjp,
                            .elements = elements::same,
                            .simplify = input_if_same_type};

}  // namespace steep
