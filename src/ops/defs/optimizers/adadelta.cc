// steep.Adadelta{rho, epsilon, weight_decay, maximize}, states square_avg, acc_delta: Zeiler 2012,
// as torch.optim.Adadelta.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> adadelta_decompose(Node n) {
  const Settings settings(n);
  const auto [param, gradient] = decayed(n, settings);
  const Value rho = settings.exact("rho"), epsilon = settings("epsilon");
  const Value squares = moving_average(rho, n.input(kFirstState), gradient * gradient);
  const Value before = n.input(kFirstState + 1);
  const Value delta = sqrt(before + epsilon) / sqrt(squares + epsilon) * gradient;
  const Value deltas = moving_average(rho, before, delta * delta);
  return {param - settings("lr") * delta, squares, deltas};
}

}  // namespace

extern const OpDef kSteepAdadelta = {.name = "steep.Adadelta",
                                     .attributes = {{"rho", 0.0},
                                                    {"epsilon", 0.0},
                                                    {"weight_decay", 0.0},
                                                    {"decoupled", 0},
                                                    {"maximize", 0}},
                                     .infer = updated_types,
                                     .decompose = adadelta_decompose,
                                     .updates_input = {kParamInput, kFirstState, kFirstState + 1}};

}  // namespace steep
