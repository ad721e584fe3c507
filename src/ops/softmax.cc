// y = exp(x) / Σ exp(x) along `axis`
#include "ops/build.h"

namespace steep {
namespace {

Grads softmax_vjp(Node n, const Grads& dy) {
  return {
      apply("steep.SoftmaxGrad", {dy[0], n.output(0)}, {{"axis", n.attrs().integer("axis", -1)}})};
}

}  // namespace

extern const OpDef kSoftmax = {.name = "Softmax", .vjp = softmax_vjp};

}  // namespace steep
