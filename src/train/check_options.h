// The values of TrainingOptions that no model is needed to check.
#pragma once

#include "steep/steep.h"

namespace steep {

/// Throws ModelError for a value that is out of range, and for a setting that no step of these
/// options would read.
void check_options(const TrainingOptions& options);

}  // namespace steep
