#include "train/settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "runtime/digest.h"
#include "runtime/utf8.h"
#include "train/option_rows.h"

namespace steep {
namespace {

// Numbers of a run do not depend on these, or only by rounding; or they become those of the
// checkpoint (the seed, the loss scale); or the names and types of its states are compared (what is
// trained, adapters, the precision of moments).
constexpr std::array kNotRecorded{
    "threads",      "memory_limit",   "offload_folder",  "offload",        "check_finite",
    "grad_norm",    "step_outputs",   "disabled_passes", "bound_to_graph", "label",
    "seed",         "loss_scale",     "trainable",       "frozen",         "lora_rank",
    "lora_targets", "state_precision"};
constexpr std::array kOfGraph{"output", "updates"};

template <typename Names>
bool is_among(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// A text that is short enough for a checkpoint and for a message, or its begin and its digest.
std::string short_text(const std::string& bytes) {
  constexpr size_t kMost = 120, kBegin = 60;
  std::string text = as_utf8(bytes);
  if (text.size() <= kMost) return text;
  Digest digest;
  digest.add(text);
  size_t end = kBegin;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;  // of UTF-8
  return fmt::format("{}… ({:016x})", text.substr(0, end), digest.value());
}

void add_group(const ParameterGroup& group, const std::string& name, Settings* settings) {
  const auto add = [&](std::string_view key, const auto& value) {
    (*settings)[fmt::format("{}.{}", name, key)] = short_text(value_text(value));
  };
  add("names", group.names);
  if (!group.optimizer) {
    add("lr_multiplier", group.lr_multiplier);
    add("weight_decay", group.weight_decay);
    return;
  }
  OptimizerOptions optimizer = *group.optimizer;
  visit_fields(optimizer, [&](const OptionRow& row, const auto& field) {
    if (!is_among(kNotRecorded, row.key)) add(row.key, field);
  });
  add("attributes", optimizer.attributes);
}

}  // namespace

Settings option_texts(const TrainingOptions& options) {
  TrainingOptions copy = options;
  Settings texts;
  visit_fields(copy, [&](const OptionRow& row, const auto& field) {
    texts[std::string(row.key)] = value_text(field);
  });
  texts["attributes"] = value_text(options.optimizer.attributes);
  texts["updates"] = value_text(options.updates);
  return texts;
}

Settings recorded_settings(const TrainingOptions& options) {
  Settings settings;
  for (auto& [name, text] : option_texts(options)) {
    if (is_among(kNotRecorded, name)) continue;
    if (is_among(kOfGraph, name) && !options.bound_to_graph) continue;
    settings[name] = short_text(text);
  }
  settings["groups"] = value_text(options.groups.size());
  for (size_t i = 0; i < options.groups.size(); ++i) {
    add_group(options.groups[i], fmt::format("groups[{}]", i), &settings);
  }
  return settings;
}

std::string changed_settings(const Settings& before, const Settings& now) {
  std::vector<std::string> changes;
  for (const auto& [name, text] : before) {
    const auto found = now.find(name);
    if (found == now.end() || found->second == text) continue;
    const auto shown = [](const std::string& t) { return t.empty() ? "none" : short_text(t); };
    changes.push_back(fmt::format("{} {} → {}", name, shown(text), shown(found->second)));
  }
  return fmt::format("{}", fmt::join(changes, ", "));
}

}  // namespace steep
