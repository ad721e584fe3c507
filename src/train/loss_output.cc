#include "train/loss_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

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

std::string note_on_output(const TrainingSession& session) {
  const TrainingOptions& options = session.options();
  const std::vector<TensorInfo> outputs = session.output_info();
  const size_t at = output_of_loss(options, outputs);
  const bool chosen = options.output.empty() && outputs.size() > 1 && at < outputs.size() &&
                      outputs[at].name != "loss";
  return chosen
             ? fmt::format("; the loss reads output '{}', the only one of floats", outputs[at].name)
             : "";
}

}  // namespace steep
