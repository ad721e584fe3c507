// Registered optimizers (steep/ops.h) in a step's graph: their functions' bodies.
#pragma once

#include <memory>

#include "model/custom/functions.h"
#include "train/weight.h"

namespace steep {

/// The registered optimizer that these options name: the one that they hold, else the one of that
/// name now. Null for those of Steep's, and for names that nobody knows.
std::shared_ptr<const CustomOptimizer> custom_optimizer(const OptimizerOptions& options);

/// Fills in OptimizerOptions::own, so that a session keeps what it was made with.
void hold_own_optimizers(TrainingOptions* options);

/// Throws ModelError for attributes that the function does not have, or lacks, and for numbers that
/// are not of their type.
void check_attributes(const CustomOptimizer& optimizer, const OptimizerOptions& options);

/// Adds the function's body, and the updates of the parameter and its states. Throws ModelError for
/// a body that does not fit: a result of another type, random draws.
void add_own_update(const CustomOptimizer& optimizer, const Weight& weight,
                    std::span<const Value> states, const UpdateInputs& inputs,
                    const OptimizerOptions& options);

}  // namespace steep
