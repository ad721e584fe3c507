// steep.SGD(param, grad, lr, buf?, step, grad_scale?){momentum, dampening, weight_decay, nesterov,
// maximize} → param', buf': torch.optim.SGD, which differs from Sutskever et al. 2013 in where lr
// enters the momentum.
#include "ops/optimizers.h"

namespace steep {
namespace {

const std::vector<int> kUpdates{0, 3};

std::vector<Type> sgd_infer(Node n) {
  std::vector<Type> types = updated_types(n, kUpdates);
  if (n.output_count() < 2) types.pop_back();
  return types;
}

std::vector<Value> sgd_decompose(Node n) {
  const Attrs& attrs = n.attrs();
  const double momentum = attrs.real("momentum", 0), decay = attrs.real("weight_decay", 0);
  Value param = n.input(0), lr = cast_like(n.input(2), param), buffer = n.input(3),
        step = n.input(4);
  Value gradient = scaled_gradient(n, 5);
  if (attrs.integer("maximize", 0) != 0) gradient = -gradient;
  if (decay != 0) gradient = gradient + decay * param;
  if (!buffer) return {param - lr * gradient};
  Value later = momentum * buffer + (1.0 - attrs.real("dampening", 0)) * gradient;
  Value velocity = where(equal(step, 1), gradient, later);  // the first step has nothing to dampen
  Value direction = attrs.integer("nesterov", 0) != 0 ? gradient + momentum * velocity : velocity;
  return {param - lr * direction, velocity};
}

}  // namespace

extern const OpDef kSteepSGD = {
    .name = "steep.SGD", .infer = sgd_infer, .decompose = sgd_decompose, .updates_input = kUpdates};

}  // namespace steep
