// steep.RAdam{beta1, beta2, epsilon, weight_decay, decoupled, maximize}, states m, v: Liu et al.
// 2020, as torch.optim.RAdam. In the first steps, when the variance estimate is not reliable, m
// alone gives the direction.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> radam_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value beta1 = settings.exact("beta1"), beta2 = settings.exact("beta2");
  const Value t = settings.step();
  const Value m = moving_average(beta1, n.input(kFirstState), gradient);
  const Value v = moving_average(beta2, n.input(kFirstState + 1), gradient * gradient);

  const Value correction2 = correction(beta2, t);
  const Value limit = 2.0 / (1.0 - beta2) - 1.0;
  const Value length = limit - 2.0 * t * apply("Pow", {beta2, t}) / correction2;
  const Value condition = greater(length, 5);
  const Value squared =
      (length - 4.0) * (length - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * length);
  const Value factor = sqrt(where(condition, squared * correction2, 0));
  const Value scale = where(condition, cast_like(factor, v) / (sqrt(v) + settings("epsilon")), 1);
  const Value rate = settings.exact("lr") / correction(beta1, t);
  return {param - cast_like(rate, param) * m * scale, m, v};
}

}  // namespace

extern const OpDef kSteepRAdam = {.name = "steep.RAdam",
                                  .attributes = {{"beta1", 0.0},
                                                 {"beta2", 0.0},
                                                 {"epsilon", 0.0},
                                                 {"weight_decay", 0.0},
                                                 {"decoupled", 0},
                                                 {"maximize", 0}},
                                  .infer = updated_types,
                                  .decompose = radam_decompose,
                                  .updates_input = {kParamInput, kFirstState, kFirstState + 1}};

}  // namespace steep
