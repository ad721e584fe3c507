// What the optimizer ops share. Their outputs are new parameters and states, written in place.
#pragma once

#include "ops/build.h"

namespace steep {

/// The types of the inputs that the outputs replace.
std::vector<Type> updated_types(Node n, const std::vector<int>& updates_input);

/// The gradient at input 1, times the optional grad_scale at input i, in the parameter's dtype.
Value scaled_gradient(Node n, int i);

/// One number that a node reads at input `lr` if this holds settings (a float64 vector, `names` in
/// order), else in its attribute: a scalar of the parameter's dtype, and one of float64.
class Settings {
 public:
  Settings(Node n, int lr, std::initializer_list<const char*> names);
  Value lr() const;
  /// float64. `standard`: of an absent attribute.
  Value exact(const char* name, double standard) const;
  /// In the parameter's dtype.
  Value operator()(const char* name, double standard) const;
  /// Is it known to be 0?
  bool is_zero(const char* name, double standard) const;

 private:
  Value at(size_t i) const;
  Node node_;
  Value lr_;
  std::vector<std::string> names_;  ///< empty: attributes
};

/// What Adam and Lamb share: m and v with the newest gradient in, and the bias-corrected m̂ / (√v̂ +
/// epsilon).
struct Moments {
  Value m, v, direction;
};
Moments moments(Node n, const Settings& settings, Value gradient, bool bias_correction);
/// Of both: what their settings are called.
Settings adam_settings(Node n);

}  // namespace steep
