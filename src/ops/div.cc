// y = a / b
#include "ops/build.h"

namespace steep {
namespace {

Grads div_vjp(Node n, const Grads& dy) {
  Value b = n.input(1), y = n.output(0);
  Value da = dy[0] / b;
  return {da, -(da * y)};
}

}  // namespace

extern const OpDef kDiv = {.name = "Div", .elementwise = true, .vjp = div_vjp};

}  // namespace steep
