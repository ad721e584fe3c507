// y = exp(x) / Σ exp(x) along `axis`
#include "ops/build.h"

namespace steep {
namespace {

Grads softmax_vjp(Node n, const Grads& dy) {
  return {apply("steep.SoftmaxGrad", {dy[0], n.output(0)}, {{"axis", integer_of(n, "axis")}})};
}

}  // namespace

extern const OpDef kSoftmax = {.name = "Softmax", .attributes = {{"axis", -1}}, .vjp = softmax_vjp};

}  // namespace steep
