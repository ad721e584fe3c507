// y = arcsin x
#include "ops/build.h"

namespace steep {
namespace {

Grads asin_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] / sqrt(1.0 - x * x)};
}

}  // namespace

extern const OpDef kAsin = {.name = "Asin", .elementwise = true, .vjp = asin_vjp};

}  // namespace steep
