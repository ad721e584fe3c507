#include "runtime/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "runtime/budget.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr size_t kMapped = size_t{1} << 20;  // larger blocks are mapped separately
constexpr size_t kHugePage = size_t{2} << 20;

AllocationHook allocation_hook = nullptr;

/// Made in advance, while there is memory.
const std::exception_ptr out_of_memory = std::make_exception_ptr(OutOfMemoryError(
    {.what = "There is not enough memory.",
     .remedy = "Use a smaller model, batch or sequence length; the operation was not done."}));

size_t capacity_for(size_t bytes) {
  const size_t unit = bytes >= kMapped ? 4096 : 64;
  return std::max<size_t>((bytes + unit - 1) / unit * unit, 64);
}

void touch(char* block, size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  if (madvise(block, bytes, MADV_POPULATE_WRITE) == 0) return;
#endif
  volatile char* page = block;
  for (size_t i = 0; i < bytes; i += 4096) page[i] = 0;
}

void* map_block(size_t capacity) {
  void* p = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  if (capacity >= kHugePage) madvise(p, capacity, MADV_HUGEPAGE);
  // In pieces, because the system takes seconds for some GiB.
  constexpr size_t kPiece = size_t{128} << 20;
  try {
    for (size_t at = 0; at < capacity; at += kPiece) {
      touch(static_cast<char*>(p) + at, std::min(kPiece, capacity - at));
      poll();
    }
  } catch (...) {
    munmap(p, capacity);
    throw;
  }
  return p;
}

void* take_block(size_t capacity) {
  if (!allocation_allowed(capacity)) return nullptr;
  return capacity >= kMapped ? map_block(capacity) : std::aligned_alloc(64, capacity);
}

void release(void* block, size_t capacity) {
  if (capacity >= kMapped) {
    munmap(block, capacity);
  } else {
    std::free(block);
  }
}

}  // namespace

void throw_out_of_memory() { std::rethrow_exception(out_of_memory); }

void set_allocation_hook(AllocationHook hook) { allocation_hook = hook; }

bool allocation_allowed(size_t bytes) {
  return allocation_hook == nullptr || allocation_hook(bytes);
}

bool leaves_malloc_alone() {
  const char* wish = std::getenv("STEEP_MALLOC");
  if (wish == nullptr || *wish == 0) return false;
  if (std::strcmp(wish, "system") == 0) return true;
  throw DataError({.what = "STEEP_MALLOC cannot be read.",
                   .node = "STEEP_MALLOC",
                   .expected = "system",
                   .received = wish,
                   .remedy = "Correct the variable, or unset it."});
}

bool keep_freed_memory() {
#ifdef __GLIBC__
  static const bool done = [] {
    if (leaves_malloc_alone()) return false;
    for (const char* own : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_",
                            "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"}) {
      if (std::getenv(own) != nullptr) return false;
    }
    // malloc maps no request separately, and never returns the end of the heap.
    return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1;
  }();
  return done;
#else
  return false;
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  if (keep_freed_memory()) malloc_trim(0);
#endif
}

MemoryPool::~MemoryPool() {
  for (auto [capacity, idle] : idle_) release(idle.block, capacity);
}

void MemoryPool::refuse(size_t bytes) const {
  throw OutOfMemoryError(
      {.what = "The memory budget is spent.",
       .expected = "at most " + bytes_text(most_) + " at one time",
       .received = bytes_text(bytes) + " beside " + bytes_text(used_bytes_) + " in use",
       .remedy = "Use smaller shapes, keep fewer results, or raise "
                 "Limits::max_bytes (max_bytes= in Python, --max-bytes)."});
}

std::shared_ptr<void> MemoryPool::allocate(size_t bytes) {
  const size_t target = capacity_for(bytes);
  size_t capacity = target;
  void* block = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (target < bytes || target > most_ || used_bytes_ > most_ - target) refuse(bytes);
    // A block may be up to a quarter larger than requested, so that similar shapes share blocks.
    auto it = idle_.lower_bound(target);
    if (it != idle_.end() && it->first <= target + target / 4) {
      capacity = it->first;
      block = it->second.block;
      idle_bytes_ -= capacity;
      idle_.erase(it);
    }
    ++allocations_;
    peak_used_blocks_ = std::max(peak_used_blocks_, ++used_blocks_);
    used_bytes_ += capacity;
    peak_used_bytes_ = std::max(peak_used_bytes_, used_bytes_);
  }
  auto forget = [&] {
    std::lock_guard lock(mutex_);
    --used_blocks_;
    used_bytes_ -= capacity;
  };
  if (block == nullptr) {
    try {
      block = take_block(capacity);
    } catch (...) {
      forget();
      throw;
    }
  }
  if (block == nullptr) {
    forget();
    throw OutOfMemoryError({.what = "Memory for the step could not be allocated.",
                            .received = fmt::format("a request for {}", counted(bytes, "byte")),
                            .remedy = "Use a smaller batch or sequence length."});
  }
  return {block, [pool = shared_from_this(), capacity](void* p) { pool->give_back(p, capacity); }};
}

void MemoryPool::give_back(void* block, size_t capacity) noexcept {
  std::multimap<size_t, Idle> surplus;  // takes nodes of idle_: no allocation
  {
    std::lock_guard lock(mutex_);
    --used_blocks_;
    used_bytes_ -= capacity;
    try {
      idle_.emplace(capacity, Idle{block, allocations_});
      idle_bytes_ += capacity;
    } catch (const std::bad_alloc&) {
      release(block, capacity);
    }
    // A step requests each of its blocks once. So a block that stayed idle while each block could
    // have been requested twice belongs to shapes that are no longer used. It is released only
    // while the total exceeds the peak of used bytes. Shapes that change all the time would leave
    // more and more idle blocks, so the count is limited to eight times the peak.
    const size_t twice = 2 * std::min(used_blocks_ + idle_.size(), 8 * peak_used_blocks_);
    for (auto it = idle_.end(); it != idle_.begin();) {
      if (idle_bytes_ + used_bytes_ <= peak_used_bytes_) break;
      --it;  // the largest first
      if (allocations_ - it->second.since <= twice) continue;
      idle_bytes_ -= it->first;
      const auto entry = it++;
      surplus.insert(idle_.extract(entry));
    }
  }
  for (auto [size, idle] : surplus) release(idle.block, size);
}

void MemoryPool::release_idle() noexcept {
  std::multimap<size_t, Idle> idle;
  {
    std::lock_guard lock(mutex_);
    idle.swap(idle_);
    idle_bytes_ = 0;
  }
  for (auto [capacity, unused] : idle) release(unused.block, capacity);
}

size_t MemoryPool::peak_bytes_in_use() const {
  std::lock_guard lock(mutex_);
  return peak_used_bytes_;
}

}  // namespace steep
