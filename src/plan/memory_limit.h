// What a run may take of the host's memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace steep {

/// The limit that each plan can meet, as little as it can.
constexpr std::string_view kLeast = "least";

struct MemoryLimit {
  size_t bytes = 0;    ///< 0: no limit
  size_t held = 0;     ///< of these, what the caller holds besides what a plan knows
  bool least = false;  ///< instead of bytes: the smallest plan that is found

  /// Is there nothing to be done?
  bool is_none() const { return bytes == 0 && !least; }
  bool allows(size_t run_bytes) const { return is_none() || (!least && run_bytes + held <= bytes); }
};

/// "2GiB", "512M", "1048576", kLeast; "": no limit. Throws ModelError for anything else, 0 too.
MemoryLimit memory_limit_from(const std::string& text);

}  // namespace steep
