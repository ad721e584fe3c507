// The options of a training as texts: processes compare theirs, and a resumed run those of its
// checkpoint.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>
#include <string>

#include "steep/steep.h"

namespace steep {

/// Texts by the names that users give: "label_smoothing" → "0.1".
using Settings = std::map<std::string, std::string>;

/// A value of an option: "0.1", "[a, b]", "none".
template <typename T>
std::string value_text(const T& value) {
  return fmt::format("{}", value);
}
template <typename T>
std::string value_text(const std::optional<T>& value) {
  return value ? value_text(*value) : "none";
}

/// All fields of option_rows.h, attributes and updates. Equal texts mean equal options.
Settings option_texts(const TrainingOptions& options);

/// Those that change the numbers of a run, and that a checkpoint is not compared by otherwise, with
/// all numbers of the groups. Long texts are cut, and end in a digest. Unless the options are bound
/// to the graph, names of the graph are left out.
Settings recorded_settings(const TrainingOptions& options);

/// "label_smoothing 0 → 0.1, batch 8 → 16": the settings that both have and that differ. "" if
/// there are none. Texts of `before` may be those of any file: long ones are cut.
std::string changed_settings(const Settings& before, const Settings& now);

}  // namespace steep
