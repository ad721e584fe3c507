// Memory that is touched once and used again. First touch of fresh pages costs about 1 ms per MiB,
// which is a third and more of a training step that allocates anew each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace steep {

/// Makes malloc keep what is freed for the next request: for loops that allocate the same large
/// arrays at every step outside the engine, as PyTorch's losses do. Otherwise glibc returns them to
/// the system, and touching them anew takes longer than computing them. The process then keeps the
/// most that it ever held; it holds no more than that at once. Concerns the whole process, from the
/// first call on. Does nothing, and returns false, where malloc is not glibc's, and where the
/// environment says otherwise: STEEP_MALLOC=system, or settings of malloc's own (MALLOC_*_,
/// GLIBC_TUNABLES). Thread-safe.
bool keep_freed_memory();

/// Returns to the system what malloc keeps of freed memory at this moment. glibc seldom reuses a
/// large aligned block that was just freed. So memory that one step frees may not serve the next
/// step, and would never return to the system. Does nothing where malloc is left alone (see
/// keep_freed_memory()). Thread-safe.
void return_freed_memory();

/// Throws OutOfMemoryError without taking memory itself: what a std::bad_alloc becomes before it
/// reaches a caller. Thread-safe.
[[noreturn]] void throw_out_of_memory();

/// For tests: asked before memory for a tensor or an arena is taken from the system, with the bytes
/// wanted. False fails the request, as a machine without memory would. Null turns it off. Not
/// thread-safe.
using AllocationHook = bool (*)(size_t bytes);
void set_allocation_hook(AllocationHook hook);
/// Asks the hook.
bool allocation_allowed(size_t bytes);

/// Blocks of memory, 64-byte aligned, kept for reuse when they come back. Large blocks are mapped
/// on their own, huge pages advised, all pages touched up front. Blocks that the recent steps did
/// not ask for go back to the system. Thread-safe: blocks may return from any thread.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  /// `most`: bytes that may be in use at one time.
  static std::shared_ptr<MemoryPool> create(size_t most = SIZE_MAX) {
    return std::shared_ptr<MemoryPool>(new MemoryPool(most));
  }
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// At least `bytes` of uninitialised memory, which goes back to the pool with the last handle;
  /// the handles keep the pool alive. Throws OutOfMemoryError.
  std::shared_ptr<void> allocate(size_t bytes);

  size_t peak_bytes_in_use() const;  ///< the most at one time, so far

 private:
  explicit MemoryPool(size_t most) : most_(most) {}
  [[noreturn]] void refuse(size_t bytes) const;
  void give_back(void* block, size_t capacity) noexcept;

  struct Idle {
    void* block;
    uint64_t since;  // allocations_ when it came back
  };

  const size_t most_;
  mutable std::mutex mutex_;
  std::multimap<size_t, Idle> idle_;  // by capacity
  uint64_t allocations_ = 0;          // so far
  size_t used_blocks_ = 0;
  size_t peak_used_blocks_ = 0;
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t peak_used_bytes_ = 0;
};

}  // namespace steep
