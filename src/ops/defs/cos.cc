// y = cos x
#include "ops/build.h"

namespace steep {
namespace {

Grads cos_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {-(dy[0] * apply("Sin", {x}))};
}

}  // namespace

extern const OpDef kCos = {.name = "Cos", .elementwise = true, .vjp = cos_vjp};

}  // namespace steep
