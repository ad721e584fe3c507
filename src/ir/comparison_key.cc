#include "ir/comparison_key.h"

#include <fmt/format.h>

#include <type_traits>

namespace steep {

std::optional<std::string> comparison_key(const Attrs& attrs) {
  std::string key;
  bool comparable = true;
  const auto append = [&](const auto& v) {
    using T = std::decay_t<decltype(v)>;
    if constexpr (std::is_same_v<T, Tensor> || std::is_same_v<T, Body>) {
      comparable = false;
    } else if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>) {
      key += fmt::format("{};", v);
    } else if constexpr (std::is_same_v<T, std::string>) {
      key += fmt::format("{}:{};", v.size(), v);
    } else if constexpr (std::is_same_v<T, Strings>) {
      for (const std::string& e : v) key += fmt::format("{}:{},", e.size(), e);
      key += ';';
    } else {
      for (const auto& e : v) key += fmt::format("{},", e);
      key += ';';
    }
  };
  for (const auto& [name, attr] : attrs) {
    key += name + "=";
    std::visit(append, attr);
  }
  if (!comparable) return std::nullopt;
  return key;
}

}  // namespace steep
