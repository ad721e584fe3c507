// steep.Adam{beta1, beta2, epsilon, weight_decay, bias_correction, decoupled, maximize}, states m,
// v, greatest v?: Kingma & Ba 2015, as torch.optim.Adam; with a third state AMSGrad, Reddi et al.
// 2018; decoupled = 1: Loshchilov & Hutter 2019, as torch.optim.AdamW; decoupled = 2: as AdamW of
// Hugging Face's transformers, which adds epsilon to the root before bias correction and decays the
// updated parameter.
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

std::vector<Value> transformers_adam(Node n, const Settings& settings) {
  const Value beta1 = settings.exact("beta1"), beta2 = settings.exact("beta2");
  const Value gradient = scaled_gradient(n), param = n.input(kParamInput);
  const Value m = moving_average(beta1, n.input(kFirstState), gradient);
  const Value v = moving_average(beta2, n.input(kFirstState + 1), gradient * gradient);
  Value size = settings.exact("lr");
  if (integer_of(n, "bias_correction") != 0) {
    const Value t = settings.step();
    size = size * sqrt(correction(beta2, t)) / correction(beta1, t);
  }
  const Value result = param - cast_like(size, param) * m / (sqrt(v) + settings("epsilon"));
  const Value decay = settings.exact("lr") * settings.exact("weight_decay");
  return {result - cast_like(decay, param) * result, m, v};
}

std::vector<Value> adam_decompose(Node n) {
  const Settings settings(n);
  if (integer_of(n, "decoupled") == 2) return transformers_adam(n, settings);
  const auto [param, gradient] = decayed(n, settings);
  const bool correct = integer_of(n, "bias_correction") != 0;
  const Moments now = moments(n, settings, gradient, correct, n.input(kFirstState + 2));
  std::vector<Value> results{param - settings("lr") * now.direction, now.m, now.v};
  if (now.greatest) results.push_back(now.greatest);
  return results;
}

}  // namespace

extern const OpDef kSteepAdam = {
    .name = "steep.Adam",
    .attributes = {{"beta1", 0.0},
                   {"beta2", 0.0},
                   {"epsilon", 0.0},
                   {"weight_decay", 0.0},
                   {"bias_correction", 1},
                   {"decoupled", 0},
                   {"maximize", 0}},
    .infer = updated_types,
    .decompose = adam_decompose,
    .updates_input = {kParamInput, kFirstState, kFirstState + 1, kFirstState + 2}};

}  // namespace steep
