#include "ops/defs/optimizers/optimizers.h"

#include <algorithm>

namespace steep {

std::vector<std::string_view> numbers_of(std::string_view op) {
  std::vector<std::string_view> names;
  for (const Attribute& a : find_op(op)->attributes) {
    if (std::holds_alternative<double>(a.otherwise)) names.push_back(a.name);
  }
  return names;
}

std::vector<Type> updated_types(Node n) {
  std::vector<Type> types{n.input(kParamInput).type()};
  for (int i = kFirstState; i < n.input_count(); ++i) {
    if (n.input(i)) types.push_back(n.input(i).type());
  }
  types.resize(std::min(types.size(), static_cast<size_t>(n.output_count())));
  return types;
}

Settings::Settings(Node n) : node_(n), lr_(n.input(kLrInput)), fed_(lr_.rank() != 0) {}

Value Settings::at(size_t i) const {
  return apply("Gather", {lr_, scalar(node_.graph(), static_cast<double>(i), DType::i64)});
}

Value Settings::exact(std::string_view name) const {
  const bool rate = name == "lr";
  if (!fed_) {
    return rate ? cast(lr_, DType::f64) : scalar(node_.graph(), real_of(node_, name), DType::f64);
  }
  if (rate) return at(0);
  const std::vector<std::string_view> names = numbers_of(node_.op());
  const auto found = std::find(names.begin(), names.end(), name);
  return at(static_cast<size_t>(found - names.begin()) + 1);
}

Value Settings::operator()(std::string_view name) const {
  return cast_like(exact(name), node_.input(kParamInput));
}

bool Settings::is_zero(std::string_view name) const { return !fed_ && real_of(node_, name) == 0; }

Value Settings::step() const { return cast(node_.input(kStepInput), DType::f64); }

Value scaled_gradient(Node n) {
  Value gradient = cast_like(n.input(kGradInput), n.input(kParamInput));
  if (Value scale = n.input(kGradScaleInput)) gradient = gradient * cast_like(scale, gradient);
  return integer_of(n, "maximize") != 0 ? gradient * -1.0 : gradient;
}

Decayed decayed(Node n, const Settings& settings) {
  Value param = n.input(kParamInput), gradient = scaled_gradient(n);
  if (settings.is_zero("weight_decay")) return {param, gradient};
  if (integer_of(n, "decoupled") == 0) {
    return {param, gradient + settings("weight_decay") * param};
  }
  const Value shrink = 1.0 - settings.exact("lr") * settings.exact("weight_decay");
  return {param * cast_like(shrink, param), gradient};
}

Value moving_average(Value beta, Value before, Value now) {
  return cast_like(beta, before) * before + cast_like(1.0 - beta, now) * now;
}

Value correction(Value beta, Value t) { return 1.0 - apply("Pow", {beta, t}); }

Moments moments(Node n, const Settings& settings, Value gradient, bool bias_correction,
                Value greatest) {
  const Value beta1 = settings.exact("beta1"), beta2 = settings.exact("beta2");
  Value m = moving_average(beta1, n.input(kFirstState), gradient);
  Value v = moving_average(beta2, n.input(kFirstState + 1), gradient * gradient);
  if (greatest) greatest = apply("Max", {greatest, v});
  Value m_hat = m, v_hat = greatest ? greatest : v;
  if (bias_correction) {
    const Value t = settings.step();
    m_hat = m_hat / cast_like(correction(beta1, t), m);
    v_hat = v_hat / cast_like(correction(beta2, t), v);
  }
  return {m, v, greatest, m_hat / (sqrt(v_hat) + settings("epsilon"))};
}

}  // namespace steep
