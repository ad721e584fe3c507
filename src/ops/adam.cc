// steep.Adam(param, grad, m, v, lr, step, grad_scale?){beta1, beta2, epsilon, weight_decay,
// decoupled} → param', m', v'. Kingma & Ba 2015, as torch.optim.Adam; decoupled = 1: Loshchilov &
// Hutter 2019, as torch.optim.AdamW. lr: float32, or float64[5] = {lr, beta1, beta2, epsilon,
// weight_decay}.
#include "ops/optimizers.h"

namespace steep {
namespace {

const std::vector<int> kUpdates{0, 2, 3};

std::vector<Type> adam_infer(Node n) { return updated_types(n, kUpdates); }

std::vector<Value> adam_decompose(Node n) {
  const Settings settings = adam_settings(n);
  Value param = n.input(0), lr = settings.lr();
  Value gradient = scaled_gradient(n, 6);
  if (n.attrs().integer("decoupled", 0) != 0) {
    param = param * (1.0 - lr * settings("weight_decay", 0));
  } else if (!settings.is_zero("weight_decay", 0)) {
    gradient = gradient + settings("weight_decay", 0) * param;
  }
  const Moments now = moments(n, settings, gradient, true);
  return {param - lr * now.direction, now.m, now.v};
}

}  // namespace

extern const OpDef kSteepAdam = {.name = "steep.Adam",
                                 .infer = adam_infer,
                                 .decompose = adam_decompose,
                                 .updates_input = kUpdates};

}  // namespace steep
