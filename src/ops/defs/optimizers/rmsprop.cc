// steep.RMSprop{alpha, epsilon, weight_decay, momentum, centered, maximize}, states square_avg,
// grad_avg if centered = 1, buf?: Tieleman & Hinton 2012, as torch.optim.RMSprop; centered: Graves
// 2013.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> rmsprop_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value alpha = settings.exact("alpha"), lr = settings("lr");
  int next = kFirstState;
  const Value squares = moving_average(alpha, n.input(next++), gradient * gradient);
  std::vector<Value> results{{}, squares};
  Value variance = squares;
  if (integer_of(n, "centered") != 0) {
    const Value mean = moving_average(alpha, n.input(next++), gradient);
    variance = squares - mean * mean;
    results.push_back(mean);
  }
  Value direction = gradient / (sqrt(variance) + settings("epsilon"));
  if (const Value buffer = n.input(next)) {
    direction = settings("momentum") * buffer + direction;
    results.push_back(direction);
  }
  results[0] = param - lr * direction;
  return results;
}

}  // namespace

extern const OpDef kSteepRMSprop = {
    .name = "steep.RMSprop",
    .attributes = {{"alpha", 0.0},
                   {"epsilon", 0.0},
                   {"weight_decay", 0.0},
                   {"momentum", 0.0},
                   {"centered", 0},
                   {"decoupled", 0},
                   {"maximize", 0}},
    .infer = updated_types,
    .decompose = rmsprop_decompose,
    .updates_input = {kParamInput, kFirstState, kFirstState + 1, kFirstState + 2}};

}  // namespace steep
