// y = max(x, 0) + min(alpha (exp(x / alpha) - 1), 0). Barron 2017
#include "ops/build.h"

namespace steep {
namespace {

Grads celu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  // Computed from x, as for Elu. The slope at 0 is constant, without a derivative of its own, as in
  // PyTorch. At NaN it is NaN.
  Value slope = exp(where(greater(x, 0), 0, x) / alpha);
  return {where(greater(x, 0), dy[0], dy[0] * where(equal(x, 0), 1, slope))};
}

}  // namespace

extern const OpDef kCelu = {
    .name = "Celu", .attributes = {{"alpha", 1.0}}, .elementwise = true, .vjp = celu_vjp};

}  // namespace steep
