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
/// What may change between steps, as the node reads it: {lr, momentum, dampening, weight decay} of
/// sgd, {lr, beta1, beta2, epsilon, weight decay} of the others.
std::vector<double> settings_of(const OptimizerOptions& options);

/// Do these two differ in settings_of() alone?
bool same_update(const OptimizerOptions& a, const OptimizerOptions& b);

/// "exp_avg/encoder.weight"
std::string moment_name(const std::string& kind, const std::string& parameter);

/// A state for an optimizer to keep of a parameter. Throws ModelError when the model has the name.
Value add_optimizer_state(Graph& graph, const std::string& name, const Type& type);

/// What one update reads besides the parameter and its moments.
struct UpdateInputs {
  Value gradient;
  Value lr;          ///< float32 scalar; or settings_of(), float64, read instead of the options
  Value step;        ///< int64 or float32 scalar: number of this step, from 1
  Value grad_scale;  ///< float32 scalar, or null
};

/// Adds the node that updates `parameter` (a state), its moments as states of the parameter's type,
/// and their updates to the graph. The graph's context gives the phase.
void add_update(Value parameter, const UpdateInputs& inputs, const OptimizerOptions& options);

}  // namespace steep
