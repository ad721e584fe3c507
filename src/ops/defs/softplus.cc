// y = ln(1 + eˣ)
#include "ops/build.h"

namespace steep {
namespace {

Grads softplus_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] * apply("Sigmoid", {x})};
}

}  // namespace

extern const OpDef kSoftplus = {.name = "Softplus", .elementwise = true, .vjp = softplus_vjp};

}  // namespace steep
