// Checks the remaining memory before work that cannot survive an allocation failure: libraries that
// compile code or start threads may end the process where an allocation of theirs fails.
#pragma once

#include <cstddef>

namespace steep {

/// The bytes that a provider may need to make one kernel, or to begin a run, beside planned memory.
constexpr size_t kHeadroom = size_t{24} << 20;

/// Reserves bytes of the limits of the process (RLIMIT_AS, RLIMIT_DATA) during its lifetime. It
/// reserves address space, not memory. Without such limits it costs two system calls.
class Headroom {
 public:
  explicit Headroom(size_t bytes);
  ~Headroom();
  Headroom(const Headroom&) = delete;
  Headroom& operator=(const Headroom&) = delete;
  bool there() const { return there_; }

 private:
  size_t bytes_;
  void* block_ = nullptr;
  bool there_ = true;
};

/// Throws OutOfMemoryError if the limits of the process leave fewer bytes than this.
void require_headroom(size_t bytes);

}  // namespace steep
