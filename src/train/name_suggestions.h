// Help for the user who gives an unknown name.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace steep {

/// "a, b, c"; past 20 names "… and 7 more".
std::string list_names(std::span<const std::string> names);

/// The few of `names` that are most similar to `query`: "one of: encoder.weight, encoder.bias";
/// all of them if there are few.
std::string nearest_names(const std::string& query, std::span<const std::string> names);

/// Whether a pattern matches a whole name. A * stands for any number of characters, also none.
bool matches(std::string_view pattern, std::string_view name);

/// The one of `names` that `query` may be a misspelling or the beginning of; "" if none is similar.
std::string closest_name(const std::string& query, std::span<const std::string> names);

}  // namespace steep
