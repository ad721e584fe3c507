#include <fmt/format.h>
#include <fmt/ranges.h>

#include "steep/steep.h"

namespace steep {

std::string TensorInfo::text() const {
  if (!has_rank) return fmt::format("{}[*]", name_of(dtype));
  std::vector<std::string> extents;
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool named = i < symbols.size() && !symbols[i].empty();
    extents.push_back(dims[i] >= 0 ? std::to_string(dims[i]) : named ? symbols[i] : "?");
  }
  return fmt::format("{}[{}]", name_of(dtype), fmt::join(extents, ", "));
}

}  // namespace steep
