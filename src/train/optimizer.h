// Optimizers, as nodes of the step's graph. The arithmetic is in ops/defs/optimizers/.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// "sgd", "adam", …
std::vector<std::string> built_in_optimizers();
/// All values of OptimizerOptions::kind: the built-in optimizers and the registered ones.
std::vector<std::string> optimizer_kinds();

/// Throws ModelError, which names the field, for an unknown kind, for a flag that the kind does not
/// have and for a value out of range.
void check_optimizer(const OptimizerOptions& options);

/// Throws ModelError, which names them, for parameters that have another number of axes than their
/// optimizer updates.
void check_ranks(std::span<const std::pair<Value, const OptimizerOptions*>> parameters);

/// A state that an optimizer keeps for each parameter.
struct Moment {
  std::string kind;     ///< PyTorch's name: "exp_avg"
  double initial = 0;   ///< value of each element before the first step
  bool scalar = false;  ///< a float32 scalar; else of the parameter's type, but float32 for 16 bits
  int reduced = 0;      ///< this axis of the parameter (-1: the last) has extent 1; 0: none
  bool never_negative = false;  ///< sums of squares and of magnitudes
  /// Another dtype, by OptimizerOptions::state_precision; int8 and uint8 have scales in a state of
  /// their own (data/block_float.h).
  DType narrow = DType::undefined;

  bool has_scales() const { return narrow == DType::i8 || narrow == DType::u8; }
};
/// The moments of a parameter of this type, in the order of the node's states.
std::vector<Moment> moments_of(const OptimizerOptions& options, const Type& parameter);
/// The value of a moment before the first step. `parameter`: the parameter's type.
Tensor initial_of(const Moment& moment, const Type& parameter);
/// Weights with fewer elements keep moments of float32 in every state precision.
inline constexpr int64_t kLeastNarrow = 4096;
/// The numbers that may change between steps, as the node reads them: the rate, then those of
/// numbers_of() the operator.
std::vector<double> settings_of(const OptimizerOptions& options);

/// The momentum, or the default of the kind.
double momentum_of(const OptimizerOptions& options);

/// Whether these two differ in settings_of() only.
bool same_update(const OptimizerOptions& a, const OptimizerOptions& b);

/// How a step treats weights of 16 bits.
struct Halves {
  bool masters = true;      ///< TrainingOptions::master_weights
  bool stochastic = false;  ///< TrainingOptions::stochastic_rounding
  int64_t stream = 0;       ///< of the random numbers for rounding; each weight has its own stream
  int64_t moments = 0;      ///< the same for its moments
};
/// The moment that holds the master weight of a 16-bit weight: float32, of the weight's shape. If
/// the weight is not the rounded master, other code wrote the weight, and the master takes its
/// value. The same rule initialises the master, which starts as zeros.
inline constexpr const char* kMaster = "master";

/// The moment that holds the moving average of a weight (TrainingOptions::ema_decay): of the
/// weight's shape and update_dtype().
inline constexpr const char* kAverage = "ema";

/// "exp_avg/encoder.weight"
std::string moment_name(const std::string& kind, const std::string& parameter);
/// "exp_avg_scale/encoder.weight": the state with the scales of that moment's blocks.
std::string scale_name(const std::string& moment);

/// Adds a state that an optimizer keeps for a parameter. Throws ModelError if the model has a value
/// of this name.
Value add_optimizer_state(Graph& graph, const std::string& name, const Type& type);

/// The values that an update reads besides the parameter and its moments.
struct UpdateInputs {
  Value gradient;
  Value lr;          ///< float32 scalar; or settings_of(), float64, instead of the options
  Value step;        ///< int64 or float32 scalar: number of this step, from 1
  Value grad_scale;  ///< float32 scalar, or null
};

/// Adds to the graph: the node that updates `parameter` (a state), the parameter's moments as
/// states, and the updates of all of these. The graph's scope gives the phase.
void add_update(Value parameter, const UpdateInputs& inputs, const OptimizerOptions& options,
                const Halves& halves = {});

}  // namespace steep
