// Activations that the attributes of an operator select.
#pragma once

#include <string>

#include "contrib/contrib.h"

namespace steep {

/// Adds "y": the activation named by the attribute `activation`, applied to `x`, with
/// activation_alpha, activation_beta and activation_gamma. Throws ModelError when the activation
/// has other parameters.
void add_named_activation(const ContribCall& c, ContribBody& f, const std::string& x);

}  // namespace steep
