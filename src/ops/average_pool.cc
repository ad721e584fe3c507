// AveragePool(x[N, C, ...]) → y and steep.AveragePoolGrad(dy, shape) → dx: means over windows
#include "ops/build.h"
#include "ops/own_types.h"

namespace steep {
namespace {

Grads average_pool_vjp(Node n, const Grads& dy) {
  return {apply("steep.AveragePoolGrad", {dy[0], shape_of(n.input(0))}, n.attrs())};
}

Grads average_pool_grad_vjp(Node n, const Grads& dy) {
  return {apply("AveragePool", {dy[0]}, n.attrs())};
}

std::vector<Type> average_pool_grad_infer(Node n) {
  return {{n.input(0).dtype(), shape_in(n.input(1))}};
}

}  // namespace

extern const OpDef kAveragePool = {.name = "AveragePool", .vjp = average_pool_vjp};
extern const OpDef kSteepAveragePoolGrad = {.name = "steep.AveragePoolGrad",
                                            .vjp = average_pool_grad_vjp,
                                            .infer = average_pool_grad_infer};

}  // namespace steep
