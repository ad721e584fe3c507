// y = artanh x
#include "ops/build.h"

namespace steep {
namespace {

Grads atanh_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] / (1.0 - x * x)};
}

}  // namespace

extern const OpDef kAtanh = {.name = "Atanh", .elementwise = true, .vjp = atanh_vjp};

}  // namespace steep
