#include "images/exif.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "images/image.h"

namespace steep {
namespace {

constexpr int kMostParts = 100'000;        // of a file that are looked at
constexpr uint64_t kMostBytes = 64 << 10;  // of EXIF: what a part of a JPEG can hold
constexpr std::array<uint8_t, 6> kMark = {'E', 'x', 'i', 'f', 0, 0};

struct Part {
  uint64_t begin;
  uint64_t size;
};

/// Copies bytes, if the file has them.
bool take(const ByteSource& source, uint64_t begin, void* out, size_t count) {
  if (begin > source.size() || count > source.size() - begin) return false;
  source.read(begin, out, count);
  return true;
}

/// Without the mark that begins EXIF in a JPEG, and in some PNG files.
bool skip_mark(const ByteSource& source, Part* part) {
  std::array<uint8_t, kMark.size()> first{};
  if (part->size < first.size() || !take(source, part->begin, first.data(), first.size()) ||
      first != kMark)
    return false;
  part->begin += kMark.size();
  part->size -= kMark.size();
  return true;
}

std::optional<Part> part_of_jpeg(const ByteSource& source) {
  constexpr uint8_t kScan = 0xda, kEnd = 0xd9, kApp1 = 0xe1, kFill = 0xff;
  uint64_t at = 2;
  std::array<uint8_t, 4> head{};
  for (int i = 0; i < kMostParts && take(source, at, head.data(), head.size()); ++i) {
    if (head[0] != kFill || head[1] == kScan || head[1] == kEnd) return {};
    if (head[1] == kFill) {
      ++at;
      continue;
    }
    const uint64_t length = (uint64_t{head[2]} << 8) | head[3];  // with its own two bytes
    if (length < 2) return {};
    Part part{.begin = at + 4, .size = length - 2};
    if (head[1] == kApp1 && skip_mark(source, &part)) return part;
    at += 2 + length;
  }
  return {};
}

std::optional<Part> part_of_png(const ByteSource& source) {
  uint64_t at = 8;
  std::array<uint8_t, 8> head{};
  for (int i = 0; i < kMostParts && take(source, at, head.data(), head.size()); ++i) {
    const uint64_t length =
        (uint64_t{head[0]} << 24) | (uint64_t{head[1]} << 16) | (uint64_t{head[2]} << 8) | head[3];
    if (std::memcmp(&head[4], "eXIf", 4) == 0) {
      Part part{.begin = at + 8, .size = length};
      skip_mark(source, &part);
      return part;
    }
    at += 12 + length;
  }
  return {};
}

/// Numbers of a TIFF file in its byte order; 0 outside of it.
class Tiff {
 public:
  explicit Tiff(std::vector<uint8_t> bytes)
      : bytes_(std::move(bytes)), little_(!bytes_.empty() && bytes_[0] == 'I') {}

  uint64_t number(uint64_t at, int count) const {
    if (at + static_cast<uint64_t>(count) > bytes_.size()) return 0;
    uint64_t value = 0;
    for (int i = 0; i < count; ++i)
      value = (value << 8) | bytes_[at + static_cast<uint64_t>(little_ ? count - 1 - i : i)];
    return value;
  }

  int orientation() const {
    constexpr uint64_t kMagic = 42, kTag = 0x0112, kShort = 3, kLong = 4, kEntry = 12;
    if (number(2, 2) != kMagic) return 1;
    const uint64_t entries = number(4, 4);
    for (uint64_t i = 0; i < number(entries, 2); ++i) {
      const uint64_t entry = entries + 2 + i * kEntry;
      if (number(entry, 2) != kTag) continue;
      const uint64_t type = number(entry + 2, 2);
      const uint64_t value = type == kShort  ? number(entry + 8, 2)
                             : type == kLong ? number(entry + 8, 4)
                                             : 1;
      return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
  }

 private:
  std::vector<uint8_t> bytes_;
  bool little_;
};

}  // namespace

int exif_orientation(const ByteSource& source) {
  const std::optional<Part> part = is_jpeg(source)  ? part_of_jpeg(source)
                                   : is_png(source) ? part_of_png(source)
                                                    : std::nullopt;
  if (!part) return 1;
  std::vector<uint8_t> bytes(static_cast<size_t>(std::min(part->size, kMostBytes)));
  if (!take(source, part->begin, bytes.data(), bytes.size())) return 1;
  return Tiff(std::move(bytes)).orientation();
}

}  // namespace steep
