// y = x > 0 ? x : alpha (eˣ - 1)
#include "ops/build.h"

namespace steep {
namespace {

Grads elu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  // Computed from x: y + alpha would be 0 where y rounds to -alpha. The slope at 0 is constant,
  // without a derivative of its own, as in PyTorch. At NaN it is NaN.
  Value slope = alpha * exp(where(greater(x, 0), 0, x));
  return {where(greater(x, 0), dy[0], dy[0] * where(equal(x, 0), alpha, slope))};
}

}  // namespace

extern const OpDef kElu = {
    .name = "Elu", .attributes = {{"alpha", 1.0}}, .elementwise = true, .vjp = elu_vjp};

}  // namespace steep
