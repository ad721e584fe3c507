// Memory that is touched once and used again. First touch of fresh pages costs about 1 ms per MiB,
// which is a third and more of a training step that allocates anew each time.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

namespace steep {

/// Blocks of memory, 64-byte aligned, kept for reuse when they come back. Large blocks are mapped
/// on their own, huge pages advised, all pages touched up front. Thread-safe: blocks may return
/// from any thread.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  static std::shared_ptr<MemoryPool> create() {
    return std::shared_ptr<MemoryPool>(new MemoryPool);
  }
  ~MemoryPool();
  MemoryPool(const MemoryPool&) = delete;
  MemoryPool& operator=(const MemoryPool&) = delete;

  /// At least `bytes` of uninitialised memory, which goes back to the pool with the last handle;
  /// the handles keep the pool alive. Throws OutOfMemoryError.
  std::shared_ptr<void> allocate(size_t bytes);

  size_t bytes_in_use() const;
  size_t bytes_idle() const;

 private:
  MemoryPool() = default;
  void give_back(void* block, size_t capacity);

  mutable std::mutex mutex_;
  std::multimap<size_t, void*> idle_;  // by capacity
  size_t idle_bytes_ = 0;
  size_t used_bytes_ = 0;
  size_t peak_used_bytes_ = 0;
};

}  // namespace steep
