// y = arcosh x
#include "ops/build.h"

namespace steep {
namespace {

Grads acosh_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] / sqrt(x * x - 1.0)};
}

}  // namespace

extern const OpDef kAcosh = {.name = "Acosh", .elementwise = true, .vjp = acosh_vjp};

}  // namespace steep
