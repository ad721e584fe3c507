// y = cosh x
#include "ops/build.h"

namespace steep {
namespace {

Grads cosh_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] * apply("Sinh", {x})};
}

}  // namespace

extern const OpDef kCosh = {.name = "Cosh", .elementwise = true, .vjp = cosh_vjp};

}  // namespace steep
