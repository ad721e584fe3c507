// steep.SGD{momentum, dampening, weight_decay, nesterov, maximize}, state buf?: torch.optim.SGD,
// which differs from Sutskever et al. 2013 in where lr enters the momentum.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> sgd_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value lr = settings("lr"), buffer = n.input(kFirstState);
  if (!buffer) return {param - lr * gradient};
  const Value momentum = settings("momentum");
  const Value take = cast_like(1.0 - settings.exact("dampening"), param);
  // The first velocity is the gradient, without dampening.
  const Value first = equal(n.input(kStepInput), 1);
  const Value velocity = where(first, gradient, momentum * buffer + take * gradient);
  const bool nesterov = integer_of(n, "nesterov") != 0;
  return {param - lr * (nesterov ? gradient + momentum * velocity : velocity), velocity};
}

}  // namespace

extern const OpDef kSteepSGD = {.name = "steep.SGD",
                                .attributes = {{"momentum", 0.0},
                                               {"dampening", 0.0},
                                               {"weight_decay", 0.0},
                                               {"decoupled", 0},
                                               {"maximize", 0},
                                               {"nesterov", 0}},
                                .infer = updated_types,
                                .decompose = sgd_decompose,
                                .updates_input = {kParamInput, kFirstState}};

}  // namespace steep
