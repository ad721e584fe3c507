#include "cli/column_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace steep::cli {

std::string column_list(std::span<const std::string> names) {
  std::string list;
  for (const std::string& name : names) {
    if (&name != names.data()) list += ',';
    if (name.find_first_of(",\"") == std::string::npos) {
      list += name;
      continue;
    }
    list += '"';
    for (const char c : name) list += c == '"' ? "\"\"" : std::string(1, c);
    list += '"';
  }
  return list;
}

std::vector<std::string> columns_of(const std::string& list) {
  std::vector<std::string> names(1);
  bool quoted = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const char c = list[i];
    const bool begins = names.back().empty() && (i == 0 || list[i - 1] == ',');
    if (c == '"' && quoted && i + 1 < list.size() && list[i + 1] == '"') {
      names.back() += list[++i];
    } else if (c == '"' && (quoted || begins)) {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  if (names.size() > 1 && list.back() == ',') names.pop_back();
  return names;
}

std::string shown_columns(const std::string& name, std::span<const std::string> columns) {
  if (columns.size() <= kMostShown) return name;
  return fmt::format("{},… ({} columns)", column_list(columns.first(kMostShown)), columns.size());
}

bool names_labels(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const char* word : {"label", "labels", "target", "targets", "y", "y_true"}) {
    if (name == word) return true;
  }
  return false;
}

}  // namespace steep::cli
