// y = tan x
#include "ops/build.h"

namespace steep {
namespace {

Grads tan_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {dy[0] * (1.0 + y * y)};
}

}  // namespace

extern const OpDef kTan = {.name = "Tan", .elementwise = true, .vjp = tan_vjp};

}  // namespace steep
