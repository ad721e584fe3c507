// Help with names that are not there.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace steep {

/// "a, b, c"; past 20 names "… and 7 more".
std::string list_names(std::span<const std::string> names);

/// The few of `names` that look most like `wanted`: "one of: encoder.weight, encoder.bias"; all of
/// them when they are few.
std::string nearest_names(const std::string& wanted, std::span<const std::string> names);

/// Does a pattern match all of a name? A * stands for any characters, also none.
bool matches(std::string_view pattern, std::string_view name);

/// The one of `names` that `wanted` may be a misspelling of; "" when none is near.
std::string closest_name(const std::string& wanted, std::span<const std::string> names);

}  // namespace steep
