// y = max(x, 0) + min(alpha (exp(x / alpha) - 1), 0). Barron 2017
#include "ops/build.h"

namespace steep {
namespace {

Grads celu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  // Of x, as that of Elu. At 0 the slope has none of its own, and at NaN it is 1, as in PyTorch.
  Value slope = exp(where(less(x, 0), x, 0) / alpha);
  return {where(less_or_equal(x, 0), dy[0] * where(equal(x, 0), 1, slope), dy[0])};
}

}  // namespace

extern const OpDef kCelu = {
    .name = "Celu", .attributes = {{"alpha", 1.0}}, .elementwise = true, .vjp = celu_vjp};

}  // namespace steep
