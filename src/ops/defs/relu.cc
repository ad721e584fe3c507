// y = max(x, 0); slope 0 at 0, 1 at NaN
#include "ops/build.h"

namespace steep {
namespace {

Grads relu_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {where(less_or_equal(y, 0), 0, dy[0])};
}

}  // namespace

extern const OpDef kRelu = {.name = "Relu", .elementwise = true, .vjp = relu_vjp};

}  // namespace steep
