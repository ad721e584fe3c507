#include "train/name_suggestions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace steep {
namespace {

/// Levenshtein's distance, two rows at a time.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t k = 0; k < b.size(); ++k) {
      const size_t replace = diagonal + (a[i] != b[k]);
      diagonal = row[k + 1];
      row[k + 1] = std::min({replace, row[k] + 1, row[k + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::string list_names(std::span<const std::string> names) {
  constexpr size_t kShown = 20;
  std::string text =
      fmt::format("{}", fmt::join(names.first(std::min(names.size(), kShown)), ", "));
  if (names.size() > kShown) text += fmt::format(", … and {} more", names.size() - kShown);
  return text;
}

std::string nearest_names(const std::string& query, std::span<const std::string> names) {
  if (names.empty()) return "there are none";
  constexpr size_t kShown = 5;
  constexpr size_t kLongest = 256;  // hostile names must not cost quadratic time
  std::vector<std::pair<size_t, size_t>> ranked;
  for (size_t i = 0; i < names.size(); ++i) {
    ranked.emplace_back(distance(query.substr(0, kLongest), names[i].substr(0, kLongest)), i);
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::string> nearest;
  for (size_t i = 0; i < std::min(kShown, ranked.size()); ++i) {
    nearest.push_back(names[ranked[i].second]);
  }
  return (names.size() > kShown ? "for instance " : "one of: ") +
         fmt::format("{}", fmt::join(nearest, ", "));
}

bool matches(std::string_view pattern, std::string_view name) {
  size_t at = pattern.find('*');
  if (at == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, at))) return false;
  name.remove_prefix(at);
  for (;;) {  // matches the parts between two stars, each at its first place
    pattern.remove_prefix(at + 1);
    at = pattern.find('*');
    if (at == std::string_view::npos) return name.ends_with(pattern);
    const size_t position = name.find(pattern.substr(0, at));
    if (position == std::string_view::npos) return false;
    name.remove_prefix(position + at);
  }
}

std::string closest_name(const std::string& query, std::span<const std::string> names) {
  size_t best = std::min<size_t>(3, query.size() / 2) + 1;
  std::string closest;
  for (const std::string& name : names) {
    const size_t d = distance(query, name);
    if (d < best) {
      best = d;
      closest = name;
    }
  }
  if (!closest.empty() || query.size() < 3) return closest;
  for (const std::string& name : names) {  // the only one that the word begins
    if (!name.starts_with(query)) continue;
    if (!closest.empty()) return "";
    closest = name;
  }
  return closest;
}

}  // namespace steep
