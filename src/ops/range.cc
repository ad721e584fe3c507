// yᵢ = start + i delta
#include "ops/build.h"

namespace steep {
namespace {

Grads range_vjp(Node n, const Grads& dy) {
  Value start = n.input(0), delta = n.input(2), y = n.output(0);
  Value steps = (y - start) / delta;
  return {sum(dy[0], {}, false), Value(), sum(dy[0] * steps, {}, false)};
}

}  // namespace

extern const OpDef kRange = {.name = "Range", .vjp = range_vjp};

}  // namespace steep
