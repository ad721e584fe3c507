// steep.Adamax{beta1, beta2, epsilon, weight_decay, maximize}, states m and the norm: Kingma & Ba
// 2015, section 7.1, as torch.optim.Adamax.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> adamax_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value beta1 = settings.exact("beta1");
  const Value m = moving_average(beta1, n.input(kFirstState), gradient);
  const Value size = apply("Abs", {gradient}) + settings("epsilon");
  const Value norm = apply("Max", {settings("beta2") * n.input(kFirstState + 1), size});
  const Value rate = settings.exact("lr") / correction(beta1, settings.step());
  return {param - cast_like(rate, param) * m / norm, m, norm};
}

}  // namespace

extern const OpDef kSteepAdamax = {.name = "steep.Adamax",
                                   .attributes = {{"beta1", 0.0},
                                                  {"beta2", 0.0},
                                                  {"epsilon", 0.0},
                                                  {"weight_decay", 0.0},
                                                  {"decoupled", 0},
                                                  {"maximize", 0}},
                                   .infer = updated_types,
                                   .decompose = adamax_decompose,
                                   .updates_input = {kParamInput, kFirstState, kFirstState + 1}};

}  // namespace steep
