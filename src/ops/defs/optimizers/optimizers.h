// What the optimizer ops share. Each has the inputs (param, grad, lr, step, grad_scale?, states…)
// and the outputs (param', states'…), which are written in place. step: the number of this step,
// from 1.
//
// lr is float32, and the other numbers are attributes; or it is float64, {lr, numbers…}, for
// numbers that change between steps. `maximize` = 1 goes along the gradient instead of against it.
#pragma once

#include "ops/build.h"

namespace steep {

constexpr int kParamInput = 0, kGradInput = 1, kLrInput = 2, kStepInput = 3, kGradScaleInput = 4,
              kFirstState = 5;

/// The numbers that an optimizer op has beside the rate, in the order in which it reads them: the
/// real attributes that it declares. REQUIRES: the name of such an op.
std::vector<std::string_view> numbers_of(std::string_view op);

/// The types of the inputs that the outputs replace.
std::vector<Type> updated_types(Node n);

/// One number that a node reads at input `lr` if this holds all of them, else in its attribute.
class Settings {
 public:
  explicit Settings(Node n);
  /// "lr" or one of numbers_of(), in float64, as PyTorch counts.
  Value exact(std::string_view name) const;
  /// In the parameter's dtype.
  Value operator()(std::string_view name) const;
  /// Is it known to be 0?
  bool is_zero(std::string_view name) const;
  /// In float64.
  Value step() const;

 private:
  Value at(size_t i) const;
  Node node_;
  Value lr_;
  bool fed_;
};

/// The gradient at its scale and with its sign, in the parameter's dtype.
Value scaled_gradient(Node n);

/// Parameter and gradient with weight decay in one of them; in the parameter where the attribute
/// `decoupled` is 1.
struct Decayed {
  Value param, gradient;
};
Decayed decayed(Node n, const Settings& settings);

// What follows takes and gives numbers in float64, tensors in the dtype of the parameter.

/// beta · before + (1 - beta) · now
Value moving_average(Value beta, Value before, Value now);
/// 1 - betaᵗ. In double: beta2ᵗ is so close to 1 at first that a float's difference from 1 has few
/// digits.
Value correction(Value beta, Value t);

/// What Adam and Lamb share: m and v with the newest gradient in, and the bias-corrected m̂ / (√v̂ +
/// epsilon), or that of the greatest v so far if there is one.
struct Moments {
  Value m, v, greatest, direction;
};
Moments moments(Node n, const Settings& settings, Value gradient, bool bias_correction,
                Value greatest = {});

}  // namespace steep
