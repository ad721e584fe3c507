// What must be the same in all processes of a training, as texts.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "steep/steep.h"

namespace steep {

using Facts = std::map<std::string, std::string>;

/// Version, options, parameters and states of a session, by name.
Facts facts_of(const TrainingSession& session);

/// Facts as JSON, and back. Bytes of the caller's that are not UTF-8 are written as "\\x..".
std::string to_text(const Facts& facts);
Facts facts_from(const std::string& text);

/// Whether a fact is of parameters or states.
bool is_of_states(const std::string& fact);

/// All fields of an optimizer as text; equal texts mean equal options.
std::string option_text(const OptimizerOptions& options);

/// The dtype of gradients on their way, by the name that users give: "float32" or "bfloat16".
/// Throws ModelError.
DType wire_dtype(const std::string& precision);

/// The exchange after owners have updated their weights: Peers::agree().
inline constexpr const char* kUpdateCall = "the update of the weights";

/// The fact in what order gradients that are divided are sent.
inline constexpr const char* kOrder = "order of parameters";

struct Difference {
  std::string name, expected, received;
};
/// The first fact that differs, and of its lines the first. Causes, such as an option, are before
/// effects.
std::optional<Difference> first_difference(const Facts& first, const Facts& other);

}  // namespace steep
