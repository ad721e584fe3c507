// Chooses the weights that get low-rank adapters (TrainingOptions::lora_rank).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "model/export/adapters.h"
#include "steep/steep.h"

namespace steep {

/// Throws ModelError: a rank below 0, a lora_alpha that is not positive, or lora_alpha or
/// lora_targets without lora_rank.
void check_adapter_options(const TrainingOptions& options);

/// The adapters that the options select, in the order of the file. REQUIRES: a rank above 0.
/// Without targets these are all that are possible; a target with a * that is no weight's name is a
/// pattern, and selects those of the names it matches that are possible. A weight that `trainable`
/// or `frozen` selects gets none. Throws ModelError: a target that cannot have an adapter, with the
/// reason; no weight that can have one; a rank above the least extent of a target.
std::vector<Adapter> choose_adapters(const DetachedModel& model, const TrainingOptions& options);

/// A model with the adapters that options ask for.
struct AdaptedModel {
  std::string bytes{};  ///< the serialised model with A, B and the nodes that apply them
  std::vector<Adapter> adapters{};
  std::set<std::string> packed{};  ///< quantised_weights()
  /// The initializers that no step changes: `packed`, their scales, and the weights of adapters.
  std::set<std::string> frozen{};
};
/// REQUIRES: a rank above 0. External data of the model stays where it is. Throws as
/// choose_adapters() does.
AdaptedModel with_adapters(std::span<const std::byte> model, const TrainingOptions& options);

/// A: uniform in ±1/√k, as in the authors' code, by `seed` and its name. B: zeros.
std::map<std::string, Tensor> initial_adapters(std::span<const Adapter> adapters, uint64_t seed);

}  // namespace steep
