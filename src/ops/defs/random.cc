// steep.RandomUniform(seed, shape){low, high}, steep.RandomNormal(seed, shape){mean, scale}, both
// {stream, dtype}: Philox4x32-10 at (seed, run, stream, element); normal numbers by the Box-Muller
// method.
#include "ops/build.h"
#include "ops/defs/dropout.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> random_infer(Node n) {
  return {{result_dtype(n, DType::f32), shape_in(n.input(1))}};
}

}  // namespace

extern const OpDef kSteepRandomNormal = {.name = "steep.RandomNormal",
                                         .attributes = {{"mean", 0.0}, {"scale", 1.0}, kStream},
                                         .stops_gradient = true,
                                         .dataless = true,
                                         .seed = 0,
                                         .infer = random_infer};
extern const OpDef kSteepRandomUniform = {.name = "steep.RandomUniform",
                                          .attributes = {{"high", 1.0}, {"low", 0.0}, kStream},
                                          .stops_gradient = true,
                                          .dataless = true,
                                          .seed = 0,
                                          .infer = random_infer};

}  // namespace steep
