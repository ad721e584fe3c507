// y = x Φ(x), or its tanh approximation. Hendrycks & Gimpel 2016
#include <cmath>
#include <numbers>

#include "ops/build.h"

namespace steep {
namespace {

Grads gelu_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  if (n.attrs().string("approximate", "none") == "tanh") {
    constexpr double kCubic = 0.044715;
    const double c = std::sqrt(2.0 / std::numbers::pi);
    Value t = tanh(c * (x + kCubic * (x * x * x)));
    Value dt = (1.0 - t * t) * (c * (1.0 + 3.0 * kCubic * (x * x)));
    return {dy[0] * (0.5 * (1.0 + t) + 0.5 * (x * dt))};
  }
  Value cdf = 0.5 * (1.0 + erf(x * std::numbers::sqrt2 / 2.0));
  Value pdf = exp(-0.5 * (x * x)) / std::sqrt(2.0 * std::numbers::pi);
  return {dy[0] * (cdf + x * pdf)};
}

}  // namespace

extern const OpDef kGelu = {.name = "Gelu", .elementwise = true, .vjp = gelu_vjp};

}  // namespace steep
