// steep.StopGradient(x) → y = x, through which no gradient flows: PyTorch's detach. Files store it
// as an Identity with the metadata kStopGradientKey. Specialisation removes it.
#include "ops/build.h"

namespace steep {
namespace {

std::vector<Type> stop_gradient_infer(Node n) { return {n.input(0).type()}; }

std::vector<Value> stop_gradient_decompose(Node n) { return {apply("Identity", {n.input(0)})}; }

}  // namespace

extern const OpDef kSteepStopGradient = {.name = "steep.StopGradient",
                                         .stops_gradient = true,
                                         .infer = stop_gradient_infer,
                                         .decompose = stop_gradient_decompose};

}  // namespace steep
