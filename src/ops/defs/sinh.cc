// y = sinh x
#include "ops/build.h"

namespace steep {
namespace {

Grads sinh_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] * apply("Cosh", {x})};
}

}  // namespace

extern const OpDef kSinh = {.name = "Sinh", .elementwise = true, .vjp = sinh_vjp};

}  // namespace steep
