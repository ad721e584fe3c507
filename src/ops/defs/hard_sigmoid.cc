// y = clip(alpha x + beta, 0, 1); slope 0 at both ends
#include "ops/build.h"

namespace steep {
namespace {

Grads hard_sigmoid_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  const double alpha = real_of(n, "alpha");
  Value inside = apply("And", {greater(y, 0), less(y, 1)});
  return {where(inside, dy[0] * alpha, 0)};
}

}  // namespace

extern const OpDef kHardSigmoid = {.name = "HardSigmoid",
                                   .attributes = {{"alpha", 0.2}, {"beta", 0.5}},
                                   .elementwise = true,
                                   .vjp = hard_sigmoid_vjp};

}  // namespace steep
