// Can this model be trained, and if not, what prevents it?
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "steep/steep.h"

namespace steep {

/// One obstacle to training.
struct Obstacle {
  std::string op{};
  std::string node{};  ///< if there is no node, the name of the value
  std::string path{};  ///< from the node to the loss: "encoder/Hardmax → encoder/MatMul → loss"
  std::string remedy{};
  std::string what{};  ///< "There is no gradient for the operator."
};

struct CheckReport {
  std::vector<Obstacle> obstacles;     ///< empty: the model can be trained
  std::vector<Obstacle> unread{};      ///< obstacles to outputs that the loss does not read
  std::vector<TensorInfo> parameters;  ///< the initializers that would be trained, as far as known
  std::vector<LeftOut> left_out;       ///< as TrainingSession::left_out()
  std::vector<std::string> warnings;   ///< as TrainingSession::warnings()
};

/// Returns all obstacles at once: operators without a gradient between the parameters and the loss
/// (without TrainingOptions::loss and output: any float output); operators of the model or of its
/// gradient for which no provider of TrainingOptions::providers has a kernel (this checks names
/// only: types are checked when a step is planned); and errors of options, import, loss and choice
/// of parameters. Throws IoError if the file cannot be opened, and ProviderError as sessions do.
CheckReport check_model(const std::filesystem::path& model, const TrainingOptions& options = {});
/// From a serialised model. External data is refused unless `folder` says where it lies.
CheckReport check_model(std::span<const std::byte> model, const TrainingOptions& options = {},
                        const std::filesystem::path& folder = {});

}  // namespace steep
