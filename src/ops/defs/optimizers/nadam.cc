// steep.NAdam{beta1, beta2, epsilon, weight_decay, momentum_decay, decoupled, maximize}, states m,
// v and the product of all μ so far (float32 scalar, at first 1): Dozat 2016, as torch.optim.NAdam.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> nadam_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value beta1 = settings.exact("beta1"), beta2 = settings.exact("beta2");
  const Value lr = settings.exact("lr"), t = settings.step();
  const auto mu = [&](Value step) {
    const Value exponent = step * settings.exact("momentum_decay");
    return beta1 * (1.0 - 0.5 * apply("Pow", {scalar(n.graph(), 0.96, DType::f64), exponent}));
  };
  const Value now = mu(t), next = mu(t + 1.0), before = n.input(kFirstState + 2);
  const Value product = before * cast_like(now, before);  // rounded, as in PyTorch
  const Value so_far = cast(product, DType::f64);
  const Value of_gradient = lr * (1.0 - now) / (1.0 - so_far);
  const Value of_m = lr * next / (1.0 - so_far * next);

  const Value m = moving_average(beta1, n.input(kFirstState), gradient);
  const Value v = moving_average(beta2, n.input(kFirstState + 1), gradient * gradient);
  const Value root = sqrt(v / cast_like(correction(beta2, t), v)) + settings("epsilon");
  const Value step = cast_like(of_gradient, param) * gradient + cast_like(of_m, param) * m;
  return {param - step / root, m, v, product};
}

}  // namespace

extern const OpDef kSteepNAdam = {
    .name = "steep.NAdam",
    .attributes = {{"beta1", 0.0},
                   {"beta2", 0.0},
                   {"epsilon", 0.0},
                   {"weight_decay", 0.0},
                   {"momentum_decay", 0.0},
                   {"decoupled", 0},
                   {"maximize", 0}},
    .infer = updated_types,
    .decompose = nadam_decompose,
    .updates_input = {kParamInput, kFirstState, kFirstState + 1, kFirstState + 2}};

}  // namespace steep
