// Gradients as a model: takes an ONNX model, and returns the ONNX model of its gradients.
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

/// Returns a serialised ONNX model of standard operators that any runtime can run. Dynamic shapes
/// stay dynamic. If an operator has a custom gradient (steep/ops.h), the model also contains
/// functions of the domain "steep", which are identities for other runtimes.
///
/// - Inputs: those of the model; then, for each differentiated output y that is not a scalar,
///   `grad_y`, of its type: the gradient of y. For a scalar it is 1.
/// - Outputs: the differentiated outputs; then for each name x in `wrt`, in that order, `grad_x`:
///   the gradient of the sum over outputs of <grad_y, y>. It is zeros if no output depends on x.
///
/// If a name is taken, the new one gets a number: `grad_x_2`. Dropout is the identity. To get
/// second derivatives, differentiate the result again.
///
/// Throws ModelError: the model cannot be read; a name is not a float input, initializer or output;
/// operators without a gradient, all listed; an operator that ONNX cannot express.
std::string gradient_model(const std::filesystem::path& model, const GradientOptions& options);
/// From a serialised model. External data is refused unless `folder` says where it lies.
std::string gradient_model(std::span<const std::byte> model, const GradientOptions& options,
                           const std::filesystem::path& folder = {});

}  // namespace steep
