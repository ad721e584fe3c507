// The limit on the host's memory of a run.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace steep {

/// The limit that stands for the smallest plan that is found.
constexpr std::string_view kLeast = "least";

struct MemoryLimit {
  size_t bytes = 0;      ///< 0: no limit
  size_t held = 0;       ///< bytes that the caller holds and that a plan does not include
  size_t offloaded = 0;  ///< bytes of the plan's states that lie in a file
  bool least = false;    ///< replaces `bytes`: take the smallest plan that is found

  /// Whether there is no limit.
  bool is_none() const { return bytes == 0 && !least; }
  /// What counts for the limit when a plan takes `run_bytes`.
  size_t counted(size_t run_bytes) const { return run_bytes + held - offloaded; }
  bool allows(size_t run_bytes) const {
    return is_none() || (!least && counted(run_bytes) <= bytes);
  }
};

/// "2GiB", "512M", "1048576", kLeast; "": no limit. Throws ModelError for anything else, 0 too.
MemoryLimit memory_limit_from(const std::string& text);

}  // namespace steep
