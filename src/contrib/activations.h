// The activation that the attributes of a product name.
#pragma once

#include <string>

#include "contrib/contrib.h"

namespace steep {

/// Adds "y", the attribute `activation` of `x`, with activation_alpha, activation_beta and
/// activation_gamma. Throws ModelError for one that needs more.
void add_named_activation(const ContribCall& c, ContribBody& f, const std::string& x);

}  // namespace steep
