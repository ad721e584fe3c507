// y = x > 0 ? x : alpha (eˣ - 1)
#include "ops/build.h"

namespace steep {
namespace {

Grads elu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), y = n.output(0);
  const double alpha = real_of(n, "alpha");
  // At 0 the slope has none of its own, and at NaN it is 1, as in PyTorch.
  return {where(less_or_equal(x, 0), dy[0] * where(equal(x, 0), alpha, y + alpha), dy[0])};
}

}  // namespace

extern const OpDef kElu = {
    .name = "Elu", .attributes = {{"alpha", 1.0}}, .elementwise = true, .vjp = elu_vjp};

}  // namespace steep
