// steep.Lamb(param, grad, m, v, lr, step, grad_scale?){beta1, beta2, epsilon, weight_decay,
// bias_correction} → param', m', v'. You et al. 2020: Adam's direction, rescaled to the length of
// the parameter. lr: as steep.Adam's.
#include "ops/optimizers.h"

namespace steep {
namespace {

const std::vector<int> kUpdates{0, 2, 3};

std::vector<Type> lamb_infer(Node n) { return updated_types(n, kUpdates); }

Value norm(Value x) { return sqrt(sum(x * x, {}, false)); }

std::vector<Value> lamb_decompose(Node n) {
  const Settings settings = adam_settings(n);
  Value param = n.input(0), lr = settings.lr();
  const bool bias_correction = n.attrs().integer("bias_correction", 1) != 0;
  const Moments now = moments(n, settings, scaled_gradient(n, 6), bias_correction);
  Value direction = now.direction + settings("weight_decay", 0) * param;
  Value length = norm(param), step = norm(direction);
  Value degenerate = apply("Or", {equal(length, 0), equal(step, 0)});
  Value trust = where(degenerate, 1, length / where(degenerate, 1, step));
  return {param - lr * trust * direction, now.m, now.v};
}

}  // namespace

extern const OpDef kSteepLamb = {.name = "steep.Lamb",
                                 .infer = lamb_infer,
                                 .decompose = lamb_decompose,
                                 .updates_input = kUpdates};

}  // namespace steep
