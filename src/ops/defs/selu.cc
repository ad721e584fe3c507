// y = gamma (x > 0 ? x : alpha (eˣ - 1)). Klambauer et al. 2017
#include "ops/build.h"

namespace steep {
namespace {

Grads selu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  const double gamma = real_of(n, "gamma");
  // Computed from x, as for Elu. The slope at 0 is constant, without a derivative of its own, as in
  // PyTorch. At NaN it is NaN.
  Value slope = alpha * gamma * exp(where(greater(x, 0), 0, x));
  return {where(greater(x, 0), dy[0] * gamma, dy[0] * where(equal(x, 0), alpha * gamma, slope))};
}

}  // namespace

extern const OpDef kSelu = {
    .name = "Selu",
    .attributes = {{"alpha", 1.67326319217681884765625}, {"gamma", 1.05070102214813232421875}},
    .elementwise = true,
    .vjp = selu_vjp};

}  // namespace steep
