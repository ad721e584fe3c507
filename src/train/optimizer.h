// Optimizers, as nodes of the step's graph. The arithmetic is in ops/{sgd,adam,lamb}.cc.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// Throws ModelError for an unknown kind and for values outside their range, naming the field.
void check_optimizer(const OptimizerOptions& options);

/// Names of the moments that `options` keeps of each parameter: {"momentum_buffer"}, {"exp_avg",
/// "exp_avg_sq"} or {}.
std::vector<std::string> moment_kinds(const OptimizerOptions& options);
/// "exp_avg/encoder.weight"
std::string moment_name(const std::string& kind, const std::string& parameter);

/// What one update reads besides the parameter and its moments.
struct UpdateInputs {
  Value gradient;
  Value lr;          ///< float32 scalar
  Value step;        ///< int64 scalar: number of this step, from 1
  Value grad_scale;  ///< float32 scalar, or null
};

/// Adds the node that updates `parameter` (a state), its moments as states of the parameter's type,
/// and their updates to the graph. The graph's context gives the phase.
void add_update(Value parameter, const UpdateInputs& inputs, const OptimizerOptions& options);

}  // namespace steep
