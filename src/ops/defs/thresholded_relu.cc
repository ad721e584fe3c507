// y = x > alpha ? x : 0
#include "ops/build.h"

namespace steep {
namespace {

Grads thresholded_relu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const double alpha = real_of(n, "alpha");
  return {where(greater(x, alpha), dy[0], 0)};
}

}  // namespace

extern const OpDef kThresholdedRelu = {.name = "ThresholdedRelu",
                                       .attributes = {{"alpha", 1.0}},
                                       .elementwise = true,
                                       .vjp = thresholded_relu_vjp};

}  // namespace steep
