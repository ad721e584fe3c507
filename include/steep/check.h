// Can this model be trained, and if not, what stands in the way?
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
  std::string node{};  ///< or the name that is at fault, where there is no node
  std::string path{};  ///< from the node to the loss: "encoder/Hardmax → encoder/MatMul → loss"
  std::string remedy{};
  std::string what{};  ///< "There is no gradient for the operator."
};

struct CheckReport {
  std::vector<Obstacle> obstacles;     ///< empty: the model can be trained
  std::vector<Obstacle> unread{};      ///< obstacles to outputs the loss does not read
  std::vector<TensorInfo> parameters;  ///< what would be trained, as far as that is known
  std::vector<LeftOut> left_out;       ///< and what would not; see TrainingSession
  std::vector<std::string> warnings;   ///< as TrainingSession's
};

/// Every obstacle at once: operators without a gradient between the parameters and the loss (or,
/// without TrainingOptions::loss and output, every float output); operators, of the model or of its
/// gradient, that no provider of TrainingOptions::providers has a kernel for (it is asked by the
/// operator's name: types are looked at as a step is planned); what import, loss and choice of
/// parameters refuse. Throws IoError when the file cannot be opened, and ProviderError as sessions
/// do.
CheckReport check_model(const std::filesystem::path& model, const TrainingOptions& options = {});
/// From a serialised model. External data is refused unless `folder` says where it lies.
CheckReport check_model(std::span<const std::byte> model, const TrainingOptions& options = {},
                        const std::filesystem::path& folder = {});

}  // namespace steep
