// y = 1 / (1 + exp(-x))
#include "ops/build.h"

namespace steep {
namespace {

Grads sigmoid_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  return {dy[0] * y * (1.0 - y)};
}

}  // namespace

extern const OpDef kSigmoid = {.name = "Sigmoid", .elementwise = true, .vjp = sigmoid_vjp};

}  // namespace steep
