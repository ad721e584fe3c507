// steep.GeluGrad(dy, x){approximate}: dx = dy (Φ(x) + x φ(x)), the gradient of Gelu, or that of its
// tanh approximation.
#include <cmath>
#include <numbers>

#include "ops/build.h"

namespace steep {
namespace {

std::vector<Type> gelu_grad_infer(Node n) { return {n.input(1).type()}; }

std::vector<Value> gelu_grad_decompose(Node n) {
  Value dy = n.input(0), x = n.input(1);
  if (text_of(n, "approximate") == "tanh") {
    constexpr double kCubic = 0.044715;
    const double c = std::sqrt(2.0 / std::numbers::pi);
    Value t = tanh(c * (x + kCubic * (x * x * x)));
    Value dt = (1.0 - t * t) * (c * (1.0 + 3.0 * kCubic * (x * x)));
    return {dy * (0.5 * (1.0 + t) + 0.5 * (x * dt))};
  }
  Value cdf = 0.5 * (1.0 + erf(x * std::numbers::sqrt2 / 2.0));
  Value pdf = exp(-0.5 * (x * x)) / std::sqrt(2.0 * std::numbers::pi);
  return {dy * (cdf + x * pdf)};
}

}  // namespace

extern const OpDef kSteepGeluGrad = {.name = "steep.GeluGrad",
                                     .attributes = {{"approximate", "none"}},
                                     .elementwise = true,
                                     .infer = gelu_grad_infer,
                                     .decompose = gelu_grad_decompose};

}  // namespace steep
