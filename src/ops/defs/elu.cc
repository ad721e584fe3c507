// y = x > 0 ? x : alpha (eˣ - 1)
#include "ops/build.h"

namespace steep {
namespace {

Grads elu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  // Of x: y + alpha is 0 where y is -alpha but for rounding. At 0 the slope has none of its own,
  // and at NaN it is 1, as in PyTorch.
  Value slope = alpha * exp(where(less(x, 0), x, 0));
  return {where(less_or_equal(x, 0), dy[0] * where(equal(x, 0), alpha, slope), dy[0])};
}

}  // namespace

extern const OpDef kElu = {
    .name = "Elu", .attributes = {{"alpha", 1.0}}, .elementwise = true, .vjp = elu_vjp};

}  // namespace steep
