// y = x / (1 + |x|)
#include "ops/build.h"

namespace steep {
namespace {

Grads softsign_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  Value d = 1.0 + apply("Abs", {x});
  return {dy[0] / (d * d)};
}

}  // namespace

extern const OpDef kSoftsign = {.name = "Softsign", .elementwise = true, .vjp = softsign_vjp};

}  // namespace steep
