#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace steep {
namespace {

constexpr size_t kAlign = 64;

/// Where the next buffer may begin. Behind a large one a page and a few cache lines stay free:
/// extents are often powers of two, and operands that lie a power of two apart compete for the same
/// lines of a cache.
size_t end_of(const Buffer& b) {
  constexpr size_t kLarge = size_t{64} << 10, kGap = 4096 + 5 * kAlign;
  const size_t end = b.offset + b.bytes + (b.bytes >= kLarge ? kGap : 0);
  return (end + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

size_t place_buffers(std::vector<Buffer>& buffers) {
  std::vector<size_t> by_size;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].storage == Storage::arena) by_size.push_back(i);
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::vector<size_t> placed;  // sorted by offset
  size_t arena = 0;
  for (size_t i : by_size) {
    Buffer& b = buffers[i];
    size_t offset = 0;
    for (size_t j : placed) {
      const Buffer& other = buffers[j];
      if (other.last < b.first || b.last < other.first) continue;
      if (offset + b.bytes <= other.offset) break;
      offset = std::max(offset, end_of(other));
    }
    b.offset = offset;
    arena = std::max(arena, offset + b.bytes);
    placed.insert(
        std::upper_bound(placed.begin(), placed.end(), i,
                         [&](size_t x, size_t y) { return buffers[x].offset < buffers[y].offset; }),
        i);
  }
  return (arena + kAlign - 1) / kAlign * kAlign;
}

}  // namespace steep
