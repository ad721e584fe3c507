#include "ops/optimizers.h"

namespace steep {

std::vector<Type> updated_types(Node n, const std::vector<int>& updates_input) {
  std::vector<Type> types;
  for (int i : updates_input) types.push_back(n.input(i) ? n.input(i).type() : Type{});
  return types;
}

Value scaled_gradient(Node n, int i) {
  Value gradient = cast_like(n.input(1), n.input(0));
  return n.input(i) ? gradient * cast_like(n.input(i), gradient) : gradient;
}

Moments moments(Node n, Value gradient, bool bias_correction) {
  const double beta1 = n.attrs().real("beta1", 0.9), beta2 = n.attrs().real("beta2", 0.999);
  Value m = beta1 * n.input(2) + (1.0 - beta1) * gradient;
  Value v = beta2 * n.input(3) + (1.0 - beta2) * (gradient * gradient);
  Value m_hat = m, v_hat = v;
  if (bias_correction) {
    // In double: beta2ᵗ is so close to 1 at first that a float's difference from 1 has few digits.
    Value t = cast(n.input(5), DType::f64);
    auto correction = [&](double beta) {
      return cast_like(1.0 - apply("Pow", {scalar(n.graph(), beta, DType::f64), t}), m);
    };
    m_hat = m / correction(beta1);
    v_hat = v / correction(beta2);
  }
  return {m, v, m_hat / (sqrt(v_hat) + n.attrs().real("epsilon", 1e-8))};
}

}  // namespace steep
