// Checks the remaining memory before work that cannot survive an allocation failure: libraries that
// compile code or start threads may end the process where an allocation of theirs fails.
#pragma once

#include <cstddef>

namespace steep {

/// What a provider may take as it makes one kernel, or as a run begins, beside what is planned.
constexpr size_t kHeadroom = size_t{24} << 20;

/// So many bytes of what the limits of the process (RLIMIT_AS, RLIMIT_DATA) let it have, kept from
/// others for as long as it lives; address space, not memory. Two system calls and nothing else
/// where there is no limit.
class Headroom {
 public:
  explicit Headroom(size_t bytes);
  ~Headroom();
  Headroom(const Headroom&) = delete;
  Headroom& operator=(const Headroom&) = delete;
  bool there() const { return there_; }

 private:
  size_t bytes_;
  void* held_ = nullptr;
  bool there_ = true;
};

/// Throws OutOfMemoryError where the process may not have so many more bytes.
void require_headroom(size_t bytes);

}  // namespace steep
