// y = tanh x
#include "ops/build.h"

namespace steep {
namespace {

Grads tanh_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {dy[0] * (1.0 - y * y)};
}

}  // namespace

extern const OpDef kTanh = {.name = "Tanh", .elementwise = true, .vjp = tanh_vjp};

}  // namespace steep
