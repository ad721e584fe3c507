// The whole training step as one graph: forward | loss | backward, clipping, updates.
//
// The forward phase ends with the loss (with check_finite or a loss scale: with the gradients), so
// that the host can look at it and drop the run before anything is written. The backward phase does
// the rest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "steep/steep.h"

namespace steep {

/// What the graphs below are made from: the imported model with its trained parameters turned into
/// states without bytes (the session owns them and binds them to every program).
struct TrainingModel {
  Graph graph;
  std::vector<std::string> parameters;
  std::vector<std::string> moments;  ///< of all parameters
  /// Names of the states in which parameters of groups with an optimizer of their own count steps.
  std::vector<std::string> counts;
  /// Running means and variances that BatchNormalization in training mode keeps up to date, and
  /// TrainingOptions::updates: states, too, but no optimizer touches them.
  std::vector<std::string> statistics;
  bool label_added = false;  ///< the loss brings an input of its own, last in order
  std::string loss_output;   ///< "" unless the loss is an output of the model
  std::vector<LeftOut> left_out;
  std::vector<std::string> warnings;
};

/// Takes the parameters' initial tensors out of `graph` into *initial, copied unless they are in
/// `given`; the moments' join them. Throws what attach_loss, choose_parameters, check_optimizer and
/// check_schedule throw.
TrainingModel prepare_model(Graph graph, std::span<const std::string> initializers,
                            std::span<const std::string> constants, std::span<const LeftOut> inside,
                            const TrainingOptions& options,
                            const std::map<std::string, Tensor>& given,
                            std::map<std::string, Tensor>* initial);

/// Forward inputs: the model's, then the label if it was added. Backward inputs: lr (float32), the
/// settings of each group with an optimizer of its own, step (int64). Forward outputs: loss, then
/// options.step_outputs. Backward outputs: the gradients' global norm (float32) if clip_norm or
/// grad_norm asks for it. With check_finite or a loss scale, the norm is a forward output, after
/// the others.
Graph step_graph(const TrainingModel& model, const TrainingOptions& options);

/// A part of a step: as step_graph(), but gradients are added to the states accumulator_name(), and
/// no optimizer is there. Forward outputs: loss, options.step_outputs, then loss_weight() where
/// there is one (see *weighs), which the gradients are multiplied by, then, with check_finite or a
/// loss scale, the gradients' norm.
Graph accumulation_graph(const TrainingModel& model, const TrainingOptions& options, bool* weighs);

/// The rest of that step: clipping and updates by what these states hold times kShareInput. Nothing
/// is forward. Backward inputs: as of step_graph(), then kShareInput.
Graph application_graph(const TrainingModel& model, const TrainingOptions& options);

/// Of the state that sums a parameter's gradients, of the type that updates are calculated in.
std::string accumulator_name(const std::string& parameter);

/// Without dropout, normalising by the running statistics. Outputs: the model's, then (with_loss)
/// the loss and, where there is one, loss_weight() of it; inputs: the model's, then (with_loss) the
/// label.
Graph eval_graph(const TrainingModel& model, const TrainingOptions& options, bool with_loss);

/// Dropout, wherever it is, becomes the identity.
void remove_dropout(Graph& graph);

/// Is it a normalisation in training mode, which makes running statistics?
bool trains_statistics(Node node);

/// Forward only. Outputs: the loss, then the gradient of each parameter.
Graph gradient_graph(const TrainingModel& model, const TrainingOptions& options);

/// Identifies what a checkpoint can be loaded into: operators (if bound_to_graph), parameters with
/// their types, kind of loss, moments.
std::string model_fingerprint(const TrainingModel& model, const TrainingOptions& options);

inline constexpr std::string_view kLrInput = "steep.lr";
/// Followed by the number of a group with an optimizer of its own: settings_of() it, float64.
inline constexpr std::string_view kGroupInput = "steep.group/";
inline constexpr std::string_view kStepInput = "steep.step";
inline constexpr std::string_view kShareInput = "steep.share";  ///< float32 scalar
/// A state, float32 scalar: what the loss is multiplied by before it is differentiated.
inline constexpr std::string_view kLossScaleState = "steep.loss_scale";

/// Is the loss scaled at this precision?
bool scales_loss(const TrainingOptions& options);

}  // namespace steep
