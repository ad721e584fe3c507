// Numbers of things in messages.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <string>
#include <string_view>

namespace steep {

/// "1 row", "2 rows", "0 classes". `noun` is the singular. Without `plural` it is a regular one.
template <std::integral Count>
std::string counted(Count count, std::string_view noun, std::string_view plural = {}) {
  if (count != 1 && !plural.empty()) return fmt::format("{} {}", count, plural);
  const char* end = count == 1 ? "" : noun.ends_with('s') ? "es" : "s";
  return fmt::format("{} {}{}", count, noun, end);
}

}  // namespace steep
