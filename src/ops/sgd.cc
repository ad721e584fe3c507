// steep.SGD(param, grad, lr, buf?, step, grad_scale?){momentum, dampening, weight_decay, nesterov,
// maximize} → param', buf': torch.optim.SGD, which differs from Sutskever et al. 2013 in where lr
// enters the momentum. lr: float32, or float64[4] = {lr, momentum, dampening, weight_decay}.
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
  const Settings settings(n, 2, {"momentum", "dampening", "weight_decay"});
  Value param = n.input(0), lr = settings.lr(), buffer = n.input(3), step = n.input(4);
  Value gradient = scaled_gradient(n, 5);
  if (attrs.integer("maximize", 0) != 0) gradient = -gradient;
  if (!settings.is_zero("weight_decay", 0)) {
    gradient = gradient + settings("weight_decay", 0) * param;
  }
  if (!buffer) return {param - lr * gradient};
  const Value momentum = settings("momentum", 0);
  Value later =
      momentum * buffer + cast_like(1.0 - settings.exact("dampening", 0), param) * gradient;
  Value velocity = where(equal(step, 1), gradient, later);  // the first step has nothing to dampen
  Value direction = attrs.integer("nesterov", 0) != 0 ? gradient + momentum * velocity : velocity;
  return {param - lr * direction, velocity};
}

}  // namespace

extern const OpDef kSteepSGD = {
    .name = "steep.SGD", .infer = sgd_infer, .decompose = sgd_decompose, .updates_input = kUpdates};

}  // namespace steep
