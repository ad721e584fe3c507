// Memory that is reused after its pages were touched once. The first touch of new pages costs about
// 1 ms per MiB. That is at least a third of a training step that allocates new memory each time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace steep {

/// Whether the environment variable STEEP_MALLOC asks for the system's settings of malloc. Throws
/// DataError for a value other than "system".
bool leaves_malloc_alone();

/// Makes malloc keep freed memory for later requests. This is for code outside of the engine that
/// allocates the same large arrays at every step, such as PyTorch's losses. Otherwise glibc returns
/// them to the system, and touching new pages takes longer than the computation. The process then
/// keeps the most memory that it ever used, and no more. Affects the whole process from the first
/// call on. Returns false, and does nothing, if malloc is not glibc's, or if the environment
/// forbids it: STEEP_MALLOC=system, or malloc's own settings (MALLOC_*_, GLIBC_TUNABLES).
/// Thread-safe.
bool keep_freed_memory();

/// Returns freed memory that malloc keeps to the system. glibc seldom reuses a large aligned block
/// that was just freed, so that memory that one step frees may not serve the next step and would
/// never return to the system. Does nothing if keep_freed_memory() does nothing. Thread-safe.
void return_freed_memory();

/// Throws OutOfMemoryError without allocating memory. Functions of the public API replace
/// std::bad_alloc by it. Thread-safe.
[[noreturn]] void throw_out_of_memory();

/// For tests: called before memory for a tensor or an arena is requested from the system, with the
/// number of bytes. If it returns false, the request fails as if there were no memory. Null turns
/// it off. Not thread-safe.
using AllocationHook = bool (*)(size_t bytes);
void set_allocation_hook(AllocationHook hook);
/// Calls the hook; true without a hook.
bool allocation_allowed(size_t bytes);

/// Blocks of memory, aligned to 64 bytes, that are kept for reuse after release. Large blocks are
/// mapped separately, with advice for huge pages, and all their pages are touched at once. Blocks
/// that recent steps did not request return to the system. Thread-safe: any thread may release
/// blocks.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  /// `most`: the bytes that may be in use at one time.
  static std::shared_ptr<MemoryPool> create(size_t most = SIZE_MAX) {
    return std::shared_ptr<MemoryPool>(new MemoryPool(most));
  }
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// At least `bytes` of uninitialised memory. It returns to the pool with the last handle; handles
  /// keep the pool alive. Throws OutOfMemoryError.
  std::shared_ptr<void> allocate(size_t bytes);

  /// Returns all blocks that are not in use to the system.
  void release_idle() noexcept;

  size_t peak_bytes_in_use() const;  ///< the most at one time, so far

 private:
  explicit MemoryPool(size_t most) : most_(most) {}
  [[noreturn]] void refuse(size_t bytes) const;
  void give_back(void* block, size_t capacity) noexcept;

  struct Idle {
    void* block;
    uint64_t since;  // value of allocations_ when the block was released
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
