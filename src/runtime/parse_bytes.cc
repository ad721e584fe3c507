#include "runtime/parse_bytes.h"

#include <charconv>
#include <cstdint>
#include <system_error>

namespace steep {

size_t parse_bytes(std::string_view text) {
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc{}) return 0;
  if (unit.empty()) return value;
  const size_t power = std::string_view("KMGT").find(unit[0]);
  if (power == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "iB")) return 0;
  const size_t shift = 10 * (power + 1);
  return value > (SIZE_MAX >> shift) ? 0 : value << shift;
}

}  // namespace steep
