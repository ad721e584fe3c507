// y = x > 0 ? x : alpha (eˣ - 1)
#include "ops/build.h"

namespace steep {
namespace {

Grads elu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  // Of x: y + alpha is 0 where y is -alpha but for rounding. At 0 the slope has none of its own,
  // as in PyTorch. At NaN it is NaN.
  Value slope = alpha * exp(where(greater(x, 0), 0, x));
  return {where(greater(x, 0), dy[0], dy[0] * where(equal(x, 0), alpha, slope))};
}

}  // namespace

extern const OpDef kElu = {
    .name = "Elu", .attributes = {{"alpha", 1.0}}, .elementwise = true, .vjp = elu_vjp};

}  // namespace steep
