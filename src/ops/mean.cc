// y = Σ xᵢ / n, broadcast
#include "ops/build.h"

namespace steep {
namespace {

Grads mean_vjp(Node n, const Grads& dy) {
  const int count = n.input_count();
  return Grads(static_cast<size_t>(count), dy[0] / count);
}

}  // namespace

extern const OpDef kMean = {.name = "Mean", .elementwise = true, .vjp = mean_vjp};

}  // namespace steep
