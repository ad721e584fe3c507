// y = arsinh x
#include "ops/build.h"

namespace steep {
namespace {

Grads asinh_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] / sqrt(x * x + 1.0)};
}

}  // namespace

extern const OpDef kAsinh = {.name = "Asinh", .elementwise = true, .vjp = asinh_vjp};

}  // namespace steep
