#include "train/loss_output.h"

#include <algorithm>

namespace steep {

size_t output_of_loss(const TrainingOptions& options, std::span<const TensorInfo> outputs) {
  if (outputs.size() == 1) return 0;
  const std::string name = options.output.empty() ? "loss" : options.output;
  const auto index = [&](auto at) { return static_cast<size_t>(at - outputs.begin()); };
  const auto named = std::find_if(outputs.begin(), outputs.end(),
                                  [&](const TensorInfo& info) { return info.name == name; });
  if (named != outputs.end() || !options.output.empty()) return index(named);
  const auto floats = [](const TensorInfo& info) { return is_float(info.dtype); };
  if (std::count_if(outputs.begin(), outputs.end(), floats) != 1) return outputs.size();
  return index(std::find_if(outputs.begin(), outputs.end(), floats));
}

}  // namespace steep
