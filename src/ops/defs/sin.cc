// y = sin x
#include "ops/build.h"

namespace steep {
namespace {

Grads sin_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] * apply("Cos", {x})};
}

}  // namespace

extern const OpDef kSin = {.name = "Sin", .elementwise = true, .vjp = sin_vjp};

}  // namespace steep
