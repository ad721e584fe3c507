// The whole training step as one graph: forward | loss | backward, clipping, updates.
//
// The forward phase ends with the loss, or, with check_finite or a loss scale, with the gradients.
// The host can then check these values and drop the run before anything is written. The backward
// phase does the rest.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"
#include "train/delivery.h"
#include "train/quantised_weights.h"

namespace steep {

/// The input of the functions below: the imported model, whose trained parameters are states
/// without bytes. (The session owns the tensors and binds them to every program.)
struct TrainingModel {
  Graph graph;
  std::vector<std::string> parameters;
  std::vector<std::string> moments;                  ///< of all parameters
  std::map<std::string, std::string> moment_owners;  ///< the parameter of each moment
  std::set<std::string> never_negative;  ///< moments that are sums of squares or of magnitudes
  std::vector<std::string> scales;       ///< scale_name() of the moments that have scales
  /// Names of the states that count the steps of parameters in groups with an optimizer of their
  /// own.
  std::vector<std::string> counts;
  /// States that no optimizer updates: running means and variances of BatchNormalization in
  /// training mode, and TrainingOptions::updates.
  std::vector<std::string> statistics;
  /// Trained weights that the file stores as integers: their parameters are float32.
  std::vector<QuantisedWeight> quantised;
  bool label_added = false;  ///< the loss adds an input for the label, the last one
  std::string loss_output;   ///< "" unless the loss is an output of the model
  std::vector<LeftOut> left_out;
  std::vector<std::string> warnings;
};

/// Moves the parameters' initial tensors from `graph` to *initial, as copies unless they are in
/// `values`, and adds those of the moments. `places`: where states that have a type, but no bytes,
/// lie in a file (data/file_places.h). Throws the errors of attach_loss, choose_parameters,
/// check_optimizer and check_schedule.
TrainingModel prepare_model(Graph graph, std::span<const std::string> initializers,
                            std::span<const std::string> constants, std::span<const LeftOut> inside,
                            const TrainingOptions& options,
                            const std::map<std::string, Tensor>& values,
                            const std::map<std::string, Tensor>& places,
                            std::map<std::string, Tensor>* initial);

/// Forward inputs: the model's, then the label if it was added. Backward inputs: lr (float32), the
/// settings of each group with an optimizer of its own, step (int64). Forward outputs: loss, then
/// options.step_outputs. Backward outputs: the gradients' global norm (float32) if clip_norm or
/// grad_norm is set. With check_finite or a loss scale, the norm is the last forward output
/// instead.
Graph step_graph(const TrainingModel& model, const TrainingOptions& options);

/// A part of a step: as step_graph(), but gradients are added to the states accumulator_name(), and
/// there is no optimizer. Forward outputs: loss, options.step_outputs, then loss_weight() if there
/// is one (*weighs is then true, and the gradients are multiplied by it), then, with check_finite
/// or a loss scale, the gradients' norm.
/// `delivery`: by the index in model.parameters.
Graph accumulation_graph(const TrainingModel& model, const TrainingOptions& options, bool* weighs,
                         Delivery delivery = {});

/// The end of a step in parts: clips and updates with the sums in these states times kShareInput.
/// The forward phase is empty. Backward inputs: those of step_graph(), then kShareInput. `held`: if
/// not null, only these parameters are updated; the norm of all gradients is then an input,
/// kNormInput, the last one, and no output. Each parameter's update is the same in both.
Graph application_graph(const TrainingModel& model, const TrainingOptions& options,
                        const std::set<std::string>* held = nullptr);

/// The state that counts the steps of a parameter in a group with an optimizer of its own.
std::string count_name(const std::string& parameter);

/// The state that sums a parameter's gradients; its dtype is update_dtype().
std::string accumulator_name(const std::string& parameter);

/// Inference mode: no dropout, and normalisations use their running statistics. Inputs: the
/// model's, then (with_loss) the label. Outputs: the model's, then (with_loss) the loss and, if
/// there is one, its loss_weight().
Graph eval_graph(const TrainingModel& model, const TrainingOptions& options, bool with_loss);

/// Replaces every Dropout by the identity.
void remove_dropout(Graph& graph);

/// Lets every normalisation in training mode read running statistics, and leave them as they are.
void use_statistics(Graph& graph);

/// Whether the node is a normalisation in training mode, which computes running statistics.
bool trains_statistics(Node node);

/// Forward only. Outputs: the loss, then the gradient of each parameter.
Graph gradient_graph(const TrainingModel& model, const TrainingOptions& options);

/// Identifies the sessions into which a checkpoint can be loaded: operators (if bound_to_graph),
/// parameters with their types, kind of loss, moments.
std::string model_fingerprint(const TrainingModel& model, const TrainingOptions& options);

inline constexpr std::string_view kLrInput = "steep.lr";
/// Followed by the number of a group with an optimizer of its own. The input holds settings_of()
/// that optimizer, float64.
inline constexpr std::string_view kGroupInput = "steep.group/";
inline constexpr std::string_view kStepInput = "steep.step";
inline constexpr std::string_view kShareInput = "steep.share";  ///< float32 scalar
inline constexpr std::string_view kNormInput = "steep.norm";    ///< float32 scalar
/// A state, float32 scalar: the factor of the loss before it is differentiated.
inline constexpr std::string_view kLossScaleState = "steep.loss_scale";

/// Whether the loss is scaled at this precision.
bool scales_loss(const TrainingOptions& options);

/// Whether a step computes the norm of all gradients.
inline bool wants_norm(const TrainingOptions& o) {
  return o.clip_norm > 0 || o.grad_norm || o.check_finite || scales_loss(o);
}

}  // namespace steep
