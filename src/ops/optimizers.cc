#include "ops/optimizers.h"

#include <algorithm>

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

Settings::Settings(Node n, int lr, std::initializer_list<const char*> names)
    : node_(n), lr_(n.input(lr)) {
  if (lr_.rank() != 0) names_.assign(names.begin(), names.end());
}

Value Settings::at(size_t i) const {
  return apply("Gather", {lr_, scalar(node_.graph(), static_cast<double>(i), DType::i64)});
}

Value Settings::lr() const { return cast_like(names_.empty() ? lr_ : at(0), node_.input(0)); }

Value Settings::exact(const char* name, double standard) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return at(static_cast<size_t>(found - names_.begin()) + 1);
  return scalar(node_.graph(), node_.attrs().real(name, standard), DType::f64);
}

Value Settings::operator()(const char* name, double standard) const {
  return cast_like(exact(name, standard), node_.input(0));
}

bool Settings::is_zero(const char* name, double standard) const {
  return names_.empty() && node_.attrs().real(name, standard) == 0;
}

Settings adam_settings(Node n) { return {n, 4, {"beta1", "beta2", "epsilon", "weight_decay"}}; }

Moments moments(Node n, const Settings& settings, Value gradient, bool bias_correction) {
  const Value beta1 = settings.exact("beta1", 0.9), beta2 = settings.exact("beta2", 0.999);
  const auto like = [&](Value x) { return cast_like(x, gradient); };
  Value m = like(beta1) * n.input(2) + like(1.0 - beta1) * gradient;
  Value v = like(beta2) * n.input(3) + like(1.0 - beta2) * (gradient * gradient);
  Value m_hat = m, v_hat = v;
  if (bias_correction) {
    // In double: beta2ᵗ is so close to 1 at first that a float's difference from 1 has few digits.
    Value t = cast(n.input(5), DType::f64);
    auto correction = [&](Value beta) { return like(1.0 - apply("Pow", {beta, t})); };
    m_hat = m / correction(beta1);
    v_hat = v / correction(beta2);
  }
  return {m, v, m_hat / (sqrt(v_hat) + settings("epsilon", 1e-8))};
}

}  // namespace steep
