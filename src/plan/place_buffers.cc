#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "plan/plan.h"
#include "runtime/address_space.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr size_t kAlign = 64;

/// The end of a buffer, where the next may begin. After a large buffer a page and a few cache lines
/// stay free: extents are often powers of two, and operands at a distance of a power of two compete
/// for the same cache lines.
size_t end_of(const Buffer& b) {
  constexpr size_t kLarge = size_t{64} << 10, kGap = 4096 + 5 * kAlign;
  const size_t end = b.offset + b.bytes + (b.bytes >= kLarge ? kGap : 0);
  return (end + kAlign - 1) / kAlign * kAlign;
}

/// So that no sum of an offset and a size wraps.
void require_room(size_t bytes, size_t offset) {
  if (offset <= kMostArenaBytes && bytes <= kMostArenaBytes - offset) return;
  throw OutOfMemoryError(
      {.what = "One run needs more memory than addresses can name.",
       .expected = fmt::format("at most {} bytes", kMostArenaBytes),
       .received = fmt::format("{} behind {} others", counted(bytes, "byte"), offset),
       .remedy = "Use a smaller batch or sequence length."});
}

/// A set of offsets, as sorted ranges that do not touch.
class Ranges {
 public:
  void add(size_t begin, size_t end) {
    const auto first = std::partition_point(ranges_.begin(), ranges_.end(),
                                            [&](const auto& r) { return r.second < begin; });
    auto last = first;
    for (; last != ranges_.end() && last->first <= end; ++last) {
      begin = std::min(begin, last->first);
      end = std::max(end, last->second);
    }
    if (first == last) {
      ranges_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      ranges_.erase(first + 1, last);
    }
  }

  /// `offset`, or the end of a range that overlaps `bytes` from there.
  size_t behind(size_t offset, size_t bytes) const {
    const auto next = std::partition_point(ranges_.begin(), ranges_.end(),
                                           [&](const auto& r) { return r.first < offset + bytes; });
    return next == ranges_.begin() ? offset : std::max(offset, (next - 1)->second);
  }

 private:
  std::vector<std::pair<size_t, size_t>> ranges_;  // in their order
};

/// The occupied parts of the arena over time: a binary tree over the steps (the children of node i
/// are 2i and 2i + 1), in which a lifetime consists of a few whole subtrees. `always`, at the root
/// of a subtree, has the buffers that live during all of its steps; `ever` has those that live
/// during some of them.
class Occupied {
 public:
  explicit Occupied(size_t steps) : leaves_(std::bit_ceil(steps)), nodes_(2 * leaves_) {}

  /// The lowest offset at which the buffer's bytes are free during its whole lifetime.
  size_t lowest(const Buffer& b) const {
    std::vector<const Ranges*> ranges;
    for_life(
        b, [&](size_t i) { ranges.push_back(&nodes_[i].ever); },
        [&](size_t i) { ranges.push_back(&nodes_[i].always); });
    size_t offset = 0;
    for (bool free = false; !free;) {
      free = true;
      for (const Ranges* r : ranges) {
        const size_t behind = r->behind(offset, b.bytes);
        free = free && behind == offset;
        offset = behind;
      }
    }
    return offset;
  }

  void add(const Buffer& b) {
    for_life(
        b,
        [&](size_t i) {
          nodes_[i].ever.add(b.offset, end_of(b));
          nodes_[i].always.add(b.offset, end_of(b));
        },
        [&](size_t i) { nodes_[i].ever.add(b.offset, end_of(b)); });
  }

 private:
  struct Node {
    Ranges ever, always;
  };

  /// Calls `part` for the roots of the subtrees that make up the lifetime, and `above` for the
  /// ancestors of these.
  template <typename Part, typename Above>
  void for_life(const Buffer& b, const Part& part, const Above& above) const {
    const size_t first = leaves_ + static_cast<size_t>(b.first);
    const size_t last = leaves_ + static_cast<size_t>(b.last);
    for (size_t i = first, end = last + 1; i < end; i /= 2, end /= 2) {
      if (i % 2 == 1) part(i++);
      if (end % 2 == 1) part(--end);
    }
    for (size_t i = first / 2, k = last / 2; i > 0; i /= 2, k /= 2) {
      above(i);
      if (k != i) above(k);
    }
  }

  size_t leaves_;
  std::vector<Node> nodes_;
};

}  // namespace

size_t place_buffers(std::vector<Buffer>& buffers, int device) {
  std::vector<size_t> by_size;
  size_t steps = 1;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].storage != Storage::arena || buffers[i].device != device) continue;
    by_size.push_back(i);
    steps = std::max(steps, static_cast<size_t>(buffers[i].last + 1));
  }
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  Occupied occupied(steps);
  size_t arena = 0;
  for (size_t i : by_size) {
    Buffer& b = buffers[i];
    b.offset = 0;
    if (b.first <= b.last && b.bytes > 0) {
      require_room(b.bytes, 0);
      b.offset = occupied.lowest(b);
      require_room(b.bytes, b.offset);
      occupied.add(b);
    }
    arena = std::max(arena, b.offset + b.bytes);
  }
  return (arena + kAlign - 1) / kAlign * kAlign;
}

}  // namespace steep
