// steep.Lamb{beta1, beta2, epsilon, weight_decay, bias_correction, maximize}, states m, v: You et
// al. 2020: Adam's direction, rescaled to the length of the parameter.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

Value norm(Value x) { return sqrt(sum(x * x, {}, false)); }

std::vector<Value> lamb_decompose(Node n) {
  const Settings settings(n);
  const Value param = n.input(kParamInput);
  const bool bias_correction = integer_of(n, "bias_correction") != 0;
  const Moments now = moments(n, settings, scaled_gradient(n), bias_correction);
  Value direction = now.direction + settings("weight_decay") * param;
  Value length = norm(param), step = norm(direction);
  Value degenerate = apply("Or", {equal(length, 0), equal(step, 0)});
  Value trust = where(degenerate, 1, length / where(degenerate, 1, step));
  return {param - settings("lr") * trust * direction, now.m, now.v};
}

}  // namespace

extern const OpDef kSteepLamb = {.name = "steep.Lamb",
                                 .attributes = {{"beta1", 0.0},
                                                {"beta2", 0.0},
                                                {"epsilon", 0.0},
                                                {"weight_decay", 0.0},
                                                {"bias_correction", 1},
                                                {"decoupled", 0},
                                                {"maximize", 0}},
                                 .infer = updated_types,
                                 .decompose = lamb_decompose,
                                 .updates_input = {kParamInput, kFirstState, kFirstState + 1}};

}  // namespace steep
