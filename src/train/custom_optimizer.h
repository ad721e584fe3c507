// The functions of registered optimizers (steep/ops.h), as nodes in the graph of a step.
#pragma once

#include <memory>

#include "model/custom/functions.h"
#include "train/weight.h"

namespace steep {

/// The registered optimizer of these options: OptimizerOptions::own if it is set, else the one that
/// is registered under the name now. Null for built-in optimizers and for unknown names.
std::shared_ptr<const CustomOptimizer> custom_optimizer(const OptimizerOptions& options);

/// Sets OptimizerOptions::own, so that later registrations do not change an existing session.
void hold_own_optimizers(TrainingOptions* options);

/// Throws ModelError for attributes that the function does not have, for attributes that it
/// requires and that are missing, and for numbers that do not fit their type.
void check_attributes(const CustomOptimizer& optimizer, const OptimizerOptions& options);

/// Adds the function's body, and the updates of the parameter and its states. Throws ModelError if
/// a result has a wrong type, and for random operators.
void add_own_update(const CustomOptimizer& optimizer, const Weight& weight,
                    std::span<const Value> states, const UpdateInputs& inputs,
                    const OptimizerOptions& options);

}  // namespace steep
