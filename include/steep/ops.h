// Operators and optimizers of one's own, as ONNX functions. What is registered here is known to
// everything in the process that reads a model from then on: training and inference sessions,
// gradient_model(), check_model(). Sessions that exist keep what they were made with.
//
//   steep::register_ops("ops.onnx");
//   steep::TrainingSession session("model.onnx", {.loss = "mse", .optimizer = {.kind = "lion"}});
//
// May be called from any thread. Everything is checked before anything is registered: ModelError
// names the function, the node in it and what is wrong.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "steep/error.h"
#include "steep/limits.h"

namespace steep {

/// Registers an operator: a serialised FunctionProto of a domain that is neither ONNX's ("",
/// "ai.onnx…") nor ours ("steep…"). A node of its domain and name means its body, of ONNX's
/// operators and of operators that are registered by then.
///
/// Without `gradient` the body is differentiated. `gradient`, another FunctionProto whatever its
/// name, is used in its place: with n inputs and m outputs of the operator it takes
///
///   n inputs, m outputs, m gradients of outputs
///
/// and returns the gradients of the inputs, in their order: at most n, "" for one that gets none,
/// each of its input's dtype, and of its shape or of what that broadcasts to. It may have
/// attributes of the operator, with their values, and no others. The gradient of an output that is
/// not float is left out, that of one that nobody reads is zeros. Second derivatives differentiate
/// the gradient's body, in which an output of the operator has its gradient, too.
///
/// Returns the new name, "my.Round"; nothing when the same is registered already. Throws ModelError
/// for bytes that are no function; unknown operators; recursion, be it by way of the gradient; a
/// gradient that takes or returns another number of values; a reserved domain; and for a name that
/// is registered with another body or gradient.
std::vector<std::string> register_op(std::span<const std::byte> function,
                                     std::span<const std::byte> gradient = {});

/// Registers an optimizer: a serialised FunctionProto of the domain "steep.optimizer", whose name
/// is the one to ask for (OptimizerOptions::kind). It takes
///
///   parameter, gradient, states…, lr, step
///
/// and returns the new parameter and the new states. lr is a scalar and step, int64, the number of
/// the step, from 1. All but step are float32, or float64 with parameters of float64; states have
/// the parameter's shape and begin as zeros. They are named as the function's inputs are, and in
/// checkpoints "exp_avg/NAME". The gradient is what comes after clipping and loss scaling.
///
/// Its attributes, numbers with a default as a rule, can be set by OptimizerOptions::attributes;
/// one called weight_decay is always OptimizerOptions::weight_decay, which is refused without it.
///
/// Returns the new name, "steep.optimizer.lion", or nothing. Throws ModelError as register_op()
/// does, and for a name that an optimizer of ours has.
std::vector<std::string> register_optimizer(std::span<const std::byte> function);

/// Registers the functions of a model file, whose graph may be empty: those of the domain
/// "steep.optimizer" as optimizers, the others as operators. One named NAMEGrad, where NAME is one
/// of its domain too, is the gradient of NAME. They may call each other. All or none are
/// registered; returns the new names. Throws ModelError as the above do and for a file without a
/// function, IoError.
std::vector<std::string> register_ops(const std::filesystem::path& file, const Limits& limits = {});

/// Takes back what was registered under a name: "my.Round", "steep.optimizer.lion". Models and
/// sessions that were made with it keep it. False when there is none.
bool unregister_op(const std::string& name);

/// The names of all that are registered, sorted. Those that a provider offers (steep/provider.h)
/// are not among them, and cannot be taken back.
std::vector<std::string> registered_ops();

}  // namespace steep
