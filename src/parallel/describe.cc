#include "parallel/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/digest.h"
#include "runtime/utf8.h"
#include "steep/parallel.h"
#include "train/option_rows.h"
#include "train/settings.h"

namespace steep {
namespace {

/// The first line that differs of each text.
std::pair<std::string, std::string> differing_lines(const std::string& one,
                                                    const std::string& other) {
  std::istringstream ones(one), others(other);
  std::string a, b;
  while (true) {
    const bool more = static_cast<bool>(std::getline(ones, a));
    const bool others_more = static_cast<bool>(std::getline(others, b));
    if (!more && !others_more) return {one, other};
    if (!more) a = "nothing more";
    if (!others_more) b = "nothing more";
    if (a != b) return {a, b};
  }
}

}  // namespace

bool is_of_states(const std::string& fact) {
  constexpr std::array kStates{"parameter ", "moments", "statistics"};
  const auto starts = [&](const char* with) { return fact.rfind(with, 0) == 0; };
  return std::any_of(kStates.begin(), kStates.end(), starts);
}

std::string option_text(const OptimizerOptions& options) {
  OptimizerOptions copy = options;
  std::string text;
  visit_fields(copy, [&](const OptionRow& row, const auto& field) {
    text += fmt::format("{}={} ", row.key, value_text(field));
  });
  for (const auto& [name, value] : options.attributes) text += fmt::format("{}={} ", name, value);
  return text;
}

Facts facts_of(const TrainingSession& session) {
  Facts facts{{"version of steep", STEEP_VERSION}};
  const TrainingOptions& options = session.options();
  for (auto& [name, text] : option_texts(options)) {
    // The learning rate of each step is compared, since it may change.
    constexpr std::array kOwn{"seed", "lr", "threads", "offload_folder", "offload"};
    if (std::find(kOwn.begin(), kOwn.end(), name) == kOwn.end()) facts["option " + name] = text;
  }
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const ParameterGroup& group = options.groups[i];
    facts[fmt::format("option groups[{}]", i)] = fmt::format(
        "{} lr_multiplier={} weight_decay={} kind={}", group.names, group.lr_multiplier,
        value_text(group.weight_decay), group.optimizer ? group.optimizer->kind : "none");
  }
  for (const std::string& name : session.parameter_names()) {
    const Tensor state = session.state(name);
    facts["parameter " + name] = fmt::format("{} {}", name_of(state.dtype()), state.dims());
  }
  const auto sorted = [](std::vector<std::string> names) {
    std::sort(names.begin(), names.end());
    return fmt::format("{}", names);
  };
  facts["moments"] = sorted(session.optimizer_state_names());
  facts["statistics"] = sorted(session.statistic_names());
  return facts;
}

std::string to_text(const Facts& facts) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, text] : facts) json[as_utf8(name)] = as_utf8(text);
  return json.dump();
}

Facts facts_from(const std::string& text) { return nlohmann::json::parse(text).get<Facts>(); }

std::optional<Difference> first_difference(const Facts& first, const Facts& other) {
  std::set<std::pair<bool, std::string>> names;  // those first that may cause others to differ
  for (const Facts* facts : {&first, &other}) {
    for (const auto& [name, text] : *facts) names.emplace(is_of_states(name), name);
  }
  const auto text_of = [](const Facts& facts, const std::string& name) {
    const auto found = facts.find(name);
    return found == facts.end() ? std::string("none") : found->second;
  };
  for (const auto& [of_states, name] : names) {
    const std::string expected = text_of(first, name), received = text_of(other, name);
    if (expected == received) continue;
    const auto [first_line, other_line] = differing_lines(expected, received);
    return Difference{name, first_line, other_line};
  }
  return {};
}

DType wire_dtype(const std::string& precision) {
  if (precision == "float32") return DType::f32;
  if (precision == "bfloat16") return DType::bf16;
  throw ModelError(ErrorParts{.what = "Gradients cannot be exchanged in this precision.",
                              .node = "wire_precision",
                              .expected = "float32 or bfloat16",
                              .received = precision});
}

std::string hash_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  Digest digest;
  std::vector<char> block(1u << 20);
  while (file) {
    file.read(block.data(), static_cast<std::streamsize>(block.size()));
    digest.add({block.data(), static_cast<size_t>(file.gcount())});
  }
  if (!file.eof()) {
    throw IoError(ErrorParts{.what = "A file cannot be read.", .node = path.string()});
  }
  return fmt::format("hash {:016x}", digest.value());
}

}  // namespace steep
