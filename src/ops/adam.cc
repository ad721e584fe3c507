// steep.Adam(param, grad, m, v, lr, step, grad_scale?){beta1, beta2, epsilon, weight_decay,
// decoupled} → param', m', v'. Kingma & Ba 2015, as torch.optim.Adam; decoupled = 1: Loshchilov &
// Hutter 2019, as torch.optim.AdamW.
#include "ops/optimizers.h"

namespace steep {
namespace {

const std::vector<int> kUpdates{0, 2, 3};

std::vector<Type> adam_infer(Node n) { return updated_types(n, kUpdates); }

std::vector<Value> adam_decompose(Node n) {
  const double decay = n.attrs().real("weight_decay", 0);
  Value param = n.input(0), lr = cast_like(n.input(4), param);
  Value gradient = scaled_gradient(n, 6);
  if (n.attrs().integer("decoupled", 0) != 0) {
    param = param * (1.0 - lr * decay);
  } else if (decay != 0) {
    gradient = gradient + decay * param;
  }
  const Moments now = moments(n, gradient, true);
  return {param - lr * now.direction, now.m, now.v};
}

}  // namespace

extern const OpDef kSteepAdam = {.name = "steep.Adam",
                                 .infer = adam_infer,
                                 .decompose = adam_decompose,
                                 .updates_input = kUpdates};

}  // namespace steep
