// y = Σ xᵢ / n, broadcast
#include "ops/build.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads mean_vjp(Node n, const Grads& dy) {
  const int count = n.input_count();
  return Grads(static_cast<size_t>(count), dy[0] / count);
}

std::vector<Value> mean_decompose(Node n) {
  std::vector<Value> operands;
  for (int i = 0; i < n.input_count(); ++i) operands.push_back(n.input(i));
  const Value sum = steep::apply("Sum", operands);
  return {sum * (1.0 / n.input_count())};
}

}  // namespace

extern const OpDef kMean = {.name = "Mean",
                            .elementwise = true,
                            .vjp = mean_vjp,
                            .decompose = mean_decompose,
                            .simplify = input_if_only_one};

}  // namespace steep
