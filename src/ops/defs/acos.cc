// y = arccos x
#include "ops/build.h"

namespace steep {
namespace {

Grads acos_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {-(dy[0] / sqrt(1.0 - x * x))};
}

}  // namespace

extern const OpDef kAcos = {.name = "Acos", .elementwise = true, .vjp = acos_vjp};

}  // namespace steep
