// Optimizers, as nodes of the step's graph. The arithmetic is in ops/defs/optimizers/.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// "sgd", "adam", …
std::vector<std::string> built_in_optimizers();
/// What can be asked for: these, and those that are registered.
std::vector<std::string> optimizer_kinds();

/// Throws ModelError for an unknown kind, for flags that it does not have and for values outside
/// their range, naming the field.
void check_optimizer(const OptimizerOptions& options);

/// A state that an optimizer keeps of each parameter.
struct Moment {
  std::string kind;     ///< PyTorch's name: "exp_avg"
  double initial = 0;   ///< each of its elements before the first step
  bool scalar = false;  ///< one float32; else as the parameter, or float32 where that has 16 bits
};
/// In the order of the node's states.
std::vector<Moment> moments_of(const OptimizerOptions& options);
/// As it is before the first step.
Tensor initial_of(const Moment& moment, const Type& parameter);
/// What may change between steps, as the node reads it: the rate, then numbers_of() the op.
std::vector<double> settings_of(const OptimizerOptions& options);

/// Do these two differ in settings_of() alone?
bool same_update(const OptimizerOptions& a, const OptimizerOptions& b);

/// How a step treats weights of 16 bits.
struct Halves {
  bool masters = true;      ///< TrainingOptions::master_weights
  bool stochastic = false;  ///< TrainingOptions::stochastic_rounding
  int64_t stream = 0;       ///< of the random numbers of that: one for each weight
};
/// The moment that a weight of 16 bits is the rounding of: float32, of the weight's shape. If the
/// weight is not the rounded copy, other code wrote it, and the copy takes its value. This also
/// initialises the copy, which starts as zeros.
inline constexpr const char* kMaster = "master";

/// The moment that is the moving average of a weight, TrainingOptions::ema_decay: of its shape, and
/// float32 where it has 16 bits.
inline constexpr const char* kAverage = "ema";

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

/// Adds the node that updates `parameter` (a state), its moments as states, and their updates to
/// the graph. The graph's context gives the phase.
void add_update(Value parameter, const UpdateInputs& inputs, const OptimizerOptions& options,
                const Halves& halves = {});

}  // namespace steep
