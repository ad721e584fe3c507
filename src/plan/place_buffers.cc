#include <algorithm>
#include <numeric>

#include "plan/plan.h"

namespace steep {

size_t place_buffers(std::vector<Buffer>& buffers) {
  constexpr size_t kAlign = 64;
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
      offset = std::max(offset, (other.offset + other.bytes + kAlign - 1) / kAlign * kAlign);
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
