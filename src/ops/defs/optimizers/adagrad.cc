// steep.Adagrad{lr_decay, epsilon, weight_decay, maximize}, state sum: Duchi et al. 2011, as
// torch.optim.Adagrad.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> adagrad_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value sum = n.input(kFirstState) + gradient * gradient;
  const Value divisor = 1.0 + (settings.step() - 1.0) * settings.exact("lr_decay");
  const Value rate = cast_like(settings.exact("lr") / divisor, param);
  return {param - rate * gradient / (sqrt(sum) + settings("epsilon")), sum};
}

}  // namespace

extern const OpDef kSteepAdagrad = {.name = "steep.Adagrad",
                                    .attributes = {{"lr_decay", 0.0},
                                                   {"epsilon", 0.0},
                                                   {"weight_decay", 0.0},
                                                   {"decoupled", 0},
                                                   {"maximize", 0}},
                                    .infer = updated_types,
                                    .decompose = adagrad_decompose,
                                    .updates_input = {kParamInput, kFirstState}};

}  // namespace steep
