// y = 2/√π ∫₀ˣ exp(-t²) dt
#include <cmath>
#include <numbers>

#include "ops/build.h"

namespace steep {
namespace {

Grads erf_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {dy[0] * (2.0 / std::sqrt(std::numbers::pi) * exp(-(x * x)))};
}

}  // namespace

extern const OpDef kErf = {.name = "Erf", .elementwise = true, .vjp = erf_vjp};

}  // namespace steep
