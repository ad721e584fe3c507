// steep.NarrowAdam, steep.NarrowSGD, steep.NarrowLamb: the updates of steep.Adam, steep.SGD and
// steep.Lamb on moments that are kept in fewer bits (OptimizerOptions::state_precision). Inputs:
// (param, grad, lr, step, grad_scale?, moments…, scales…, seed), outputs (param', moments',
// scales'). Moments are bfloat16, without scales; or int8 and, if they are never negative, uint8:
// codes of data/block_float.h, with a vector of scales for each. The kernel computes in float32 and
// rounds new moments at random, by words of (seed, run, stream, element). Parameter and gradient
// are float32; those of NarrowAdam and NarrowSGD may be bfloat16. Such a parameter is rounded to
// nearest or, with a param_stream other than 0, at random, by words of that stream.
#include "ops/defs/dropout.h"
#include "ops/defs/optimizers/optimizers.h"

namespace steep {
namespace {

/// The types of the inputs that the outputs replace: all from the first moment to the seed.
std::vector<Type> narrow_types(Node n) {
  std::vector<Type> types{n.input(kParamInput).type()};
  for (int i = kFirstState; i < n.input_count() - 1; ++i) {
    if (n.input(i)) types.push_back(n.input(i).type());
  }
  return types;
}

}  // namespace

extern const OpDef kSteepNarrowAdam = {
    .name = "steep.NarrowAdam",
    .attributes = {{"beta1", 0.0},
                   {"beta2", 0.0},
                   {"epsilon", 0.0},
                   {"weight_decay", 0.0},
                   {"bias_correction", 1},
                   {"decoupled", 0},
                   {"maximize", 0},
                   {"param_stream", 0},
                   kStream},
    .seed = kFirstState + 4,
    .infer = narrow_types,
    .updates_input = {kParamInput, kFirstState, kFirstState + 1, kFirstState + 2, kFirstState + 3}};

extern const OpDef kSteepNarrowLamb = {
    .name = "steep.NarrowLamb",
    .attributes = {{"beta1", 0.0},
                   {"beta2", 0.0},
                   {"epsilon", 0.0},
                   {"weight_decay", 0.0},
                   {"bias_correction", 1},
                   {"maximize", 0},
                   kStream},
    .seed = kFirstState + 4,
    .infer = narrow_types,
    .updates_input = {kParamInput, kFirstState, kFirstState + 1, kFirstState + 2, kFirstState + 3}};

extern const OpDef kSteepNarrowSGD = {.name = "steep.NarrowSGD",
                                      .attributes = {{"momentum", 0.0},
                                                     {"dampening", 0.0},
                                                     {"weight_decay", 0.0},
                                                     {"decoupled", 0},
                                                     {"maximize", 0},
                                                     {"nesterov", 0},
                                                     {"param_stream", 0},
                                                     kStream},
                                      .seed = kFirstState + 2,
                                      .infer = narrow_types,
                                      .updates_input = {kParamInput, kFirstState, kFirstState + 1}};

}  // namespace steep
