// Custom operators and optimizers, as ONNX functions. Once a function is registered, all calls in
// the process that read a model can use it: training and inference sessions, gradient_model(),
// check_model(). Existing sessions do not change.
//
//   steep::register_ops("ops.onnx");
//   steep::TrainingSession session("model.onnx", {.loss = "mse", .optimizer = {.kind = "lion"}});
//
// Thread-safe. Everything is checked before anything is registered: ModelError names the function,
// the node in it and the cause.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "steep/error.h"
#include "steep/limits.h"

namespace steep {

/// Registers an operator: a serialised FunctionProto, whose domain must not be one of ONNX ("",
/// "ai.onnx…") or Steep ("steep…"). A node with its domain and name stands for its body, which has
/// operators of ONNX and operators that are registered already.
///
/// Without `gradient` the body is differentiated. `gradient` is another FunctionProto, with any
/// name, that replaces this derivative. For an operator with n inputs and m outputs it takes
///
///   n inputs, m outputs, m gradients of outputs
///
/// and returns the gradients of the inputs, in order: at most n; "" means no gradient. Each has the
/// dtype of its input, and its shape or a shape to which it broadcasts. It may have attributes of
/// the operator, with the node's values, and no others. The gradient of an output that is not float
/// is absent; the gradient of an output that nothing reads is zeros. Second derivatives
/// differentiate the gradient's body; there the operator's outputs have the registered gradient.
///
/// Returns the new name, "my.Round"; nothing if the same function is registered already. Throws
/// ModelError for bytes that are not a function; unknown operators; recursion, also in the
/// gradient; a gradient with the wrong number of inputs or outputs; a reserved domain; and for a
/// name that is registered with another body or gradient.
std::vector<std::string> register_op(std::span<const std::byte> function,
                                     std::span<const std::byte> gradient = {});

/// Registers an optimizer: a serialised FunctionProto of the domain "steep.optimizer".
/// OptimizerOptions::kind selects it by its name. It takes
///
///   parameter, gradient, states…, lr, step
///
/// and returns the new parameter and the new states. lr is a scalar; step is an int64, the number
/// of the step, from 1. All except step are float32, or float64 for parameters of float64. States
/// have the parameter's shape and start as zeros. Their names are those of the function's inputs,
/// in checkpoints "exp_avg/NAME". The gradient is given after clipping and loss scaling.
///
/// OptimizerOptions::attributes sets its attributes, which are numbers and usually have defaults.
/// OptimizerOptions::weight_decay sets the attribute weight_decay, and is refused if the function
/// does not have it.
///
/// Returns the new name, "steep.optimizer.lion", or nothing. Throws ModelError as register_op()
/// does, and for the name of a built-in optimizer.
std::vector<std::string> register_optimizer(std::span<const std::byte> function);

/// Registers the functions of a model file, whose graph may be empty: functions of the domain
/// "steep.optimizer" as optimizers, all others as operators. A function NAMEGrad is the gradient of
/// the function NAME of the same domain. They may call each other. Either all or none are
/// registered; returns the new names. Throws ModelError as the functions above, and for a file
/// without a function, IoError.
std::vector<std::string> register_ops(const std::filesystem::path& file, const Limits& limits = {});

/// Removes the function registered under a name: "my.Round", "steep.optimizer.lion". Models and
/// sessions that were made with it keep it. Returns false if there is none.
bool unregister_op(const std::string& name);

/// The names of all registered functions, sorted. Operators of a provider (steep/provider.h) are
/// not among them, and cannot be removed.
std::vector<std::string> registered_ops();

}  // namespace steep
