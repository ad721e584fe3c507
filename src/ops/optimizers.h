// What the optimizer ops share. Their outputs are new parameters and states, written in place.
#pragma once

#include "ops/build.h"

namespace steep {

/// The types of the inputs that the outputs replace.
std::vector<Type> updated_types(Node n, const std::vector<int>& updates_input);

/// The gradient at input 1, times the optional grad_scale at input i, in the parameter's dtype.
Value scaled_gradient(Node n, int i);

/// What Adam and Lamb share: m and v with the newest gradient in, and the bias-corrected m̂ / (√v̂ +
/// epsilon).
struct Moments {
  Value m, v, direction;
};
Moments moments(Node n, Value gradient, bool bias_correction);

}  // namespace steep
