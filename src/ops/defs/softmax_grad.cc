// steep.SoftmaxGrad(dy, y){axis}: dx = y (dy - Σ dy y), the gradient of Softmax.
#include "ops/build.h"

namespace steep {
namespace {

std::vector<Type> softmax_grad_infer(Node n) { return {n.input(1).type()}; }

std::vector<Value> softmax_grad_decompose(Node n) {
  Value dy = n.input(0), y = n.input(1);
  return {y * (dy - sum(dy * y, {integer_of(n, "axis")}, true))};
}

}  // namespace

extern const OpDef kSteepSoftmaxGrad = {.name = "steep.SoftmaxGrad",
                                        .attributes = {{"axis", -1}},
                                        .infer = softmax_grad_infer,
                                        .decompose = softmax_grad_decompose};

}  // namespace steep
