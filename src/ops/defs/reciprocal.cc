// y = 1 / x
#include "ops/build.h"

namespace steep {
namespace {

Grads reciprocal_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {-(dy[0] * y * y)};
}

}  // namespace

extern const OpDef kReciprocal = {.name = "Reciprocal", .elementwise = true, .vjp = reciprocal_vjp};

}  // namespace steep
