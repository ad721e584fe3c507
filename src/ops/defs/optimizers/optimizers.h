// Shared by the optimizer ops. Each has the inputs (param, grad, lr, step, grad_scale?, states…)
// and the outputs (param', states'…), which are written in place. step: the number of this step,
// from 1.
//
// lr is a float32 scalar, and the other numbers are attributes. If numbers change between steps, lr
// is a float64 vector {lr, numbers…}. `maximize` = 1 moves along the gradient instead of against
// it.
#pragma once

#include "ops/build.h"

namespace steep {

constexpr int kParamInput = 0, kGradInput = 1, kLrInput = 2, kStepInput = 3, kGradScaleInput = 4,
              kFirstState = 5;

/// The numbers that an optimizer op has in addition to lr, in the order in which it reads them: the
/// real attributes that it declares. REQUIRES: `op` is an optimizer op.
std::vector<std::string_view> numbers_of(std::string_view op);

/// The types of the inputs that the outputs replace.
std::vector<Type> updated_types(Node n);

/// The numbers of a node: elements of input `lr` if that holds all of them, otherwise attributes.
class Settings {
 public:
  explicit Settings(Node n);
  /// "lr" or one of numbers_of(), in float64 as in PyTorch.
  Value exact(std::string_view name) const;
  /// As exact(), in the parameter's dtype.
  Value operator()(std::string_view name) const;
  /// Whether the number is known to be 0.
  bool is_zero(std::string_view name) const;
  /// The number of the step, in float64.
  Value step() const;

 private:
  Value at(size_t i) const;
  Node node_;
  Value lr_;
  bool fed_;
};

/// The gradient with its scale and sign applied, in the parameter's dtype.
Value scaled_gradient(Node n);

/// Parameter and gradient, with weight decay applied to the parameter if the attribute `decoupled`
/// is 1, otherwise to the gradient.
struct Decayed {
  Value param, gradient;
};
Decayed decayed(Node n, const Settings& settings);

// The functions below take and return numbers in float64, and tensors in the parameter's dtype.

/// beta · before + (1 - beta) · now
Value moving_average(Value beta, Value before, Value now);
/// 1 - betaᵗ. In double: beta2ᵗ is close to 1 in the first steps, and 1 - beta2ᵗ would have few
/// correct digits in float.
Value correction(Value beta, Value t);

/// Shared by Adam and Lamb: m and v, updated with the gradient, and the bias-corrected direction m̂
/// / (√v̂ + epsilon). If there is a `greatest` v, it is updated and replaces v in the direction.
struct Moments {
  Value m, v, greatest, direction;
};
Moments moments(Node n, const Settings& settings, Value gradient, bool bias_correction,
                Value greatest = {});

}  // namespace steep
