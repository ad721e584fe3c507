// Which output of a model the loss reads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "steep/steep.h"

namespace steep {

/// The index of the output that the loss reads: the named one, the only one, the one called "loss",
/// or the only one of floats, as find_output() of train/loss.h chooses; outputs.size() if there is
/// none.
size_t output_of_loss(const TrainingOptions& options, std::span<const TensorInfo> outputs);

}  // namespace steep
