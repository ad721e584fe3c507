// y = eˣ
#include "ops/build.h"

namespace steep {
namespace {

Grads exp_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {dy[0] * y};
}

}  // namespace

extern const OpDef kExp = {.name = "Exp", .elementwise = true, .vjp = exp_vjp};

}  // namespace steep
