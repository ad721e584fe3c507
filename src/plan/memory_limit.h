// What a run may take of the host's memory.
#pragma once

#include <cstddef>
#include <string>

namespace steep {

struct MemoryLimit {
  size_t bytes = 0;  ///< 0: no limit
  size_t held = 0;   ///< of these, what the caller holds besides what a plan knows
};

/// "2GiB", "512M", "1048576"; "": no limit. Throws ModelError for anything else, 0 too.
MemoryLimit memory_limit_from(const std::string& text);

}  // namespace steep
