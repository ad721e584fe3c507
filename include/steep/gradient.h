// Gradients as a model: an ONNX model in, the ONNX model of its gradients out.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "steep/error.h"
#include "steep/steep.h"

namespace steep {

struct GradientOptions {
  /// Inputs and initializers to differentiate with respect to, by name: float, at least one.
  std::vector<std::string> wrt;
  /// Outputs to differentiate, by name. Empty: every float output.
  std::vector<std::string> outputs{};
  /// Scalar outputs have an input `grad_y` too, instead of 1.
  bool scalar_gradients = false;
  Limits limits{};
};

/// A serialised ONNX model of standard operators that any runtime can run, dynamic shapes kept.
/// Where an operator has a gradient of its own (steep/ops.h) there are functions of the domain
/// "steep", too, which the model holds: other runtimes see identities in them.
///
/// - Inputs: those of the model; then, for each differentiated output y that is not a scalar,
///   `grad_y`, of its type: the gradient that reaches it. A scalar's is 1.
/// - Outputs: the differentiated ones; then for each name x in `wrt`, in that order, `grad_x`: the
///   gradient of the sum over outputs of <grad_y, y>. Zeros where x does not matter.
///
/// A name that is taken gets a number: `grad_x_2`. Dropout is the identity. Differentiating the
/// result once more gives second derivatives.
///
/// Throws ModelError: an unreadable model; a name that is no float input, initializer or output; an
/// operator on the way that has no gradient, all of them listed; one that ONNX cannot say.
std::string gradient_model(const std::filesystem::path& model, const GradientOptions& options);
/// From a serialised model. External data is refused unless `folder` says where it lies.
std::string gradient_model(std::span<const std::byte> model, const GradientOptions& options,
                           const std::filesystem::path& folder = {});

}  // namespace steep
