#include "images/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr std::string_view kJpeg = "\xff\xd8\xff";
constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";

bool begins_with(const ByteSource& source, std::string_view bytes, uint64_t at = 0) {
  std::array<char, 8> first{};
  if (source.size() < at + bytes.size()) return false;
  source.read(at, first.data(), bytes.size());
  return std::string_view(first.data(), bytes.size()) == bytes;
}

/// What a file of images is that is neither JPEG nor PNG.
std::string format_of(const ByteSource& source) {
  constexpr std::pair<std::string_view, const char*> kOthers[] = {
      {"GIF8", "GIF"}, {"BM", "BMP"}, {{"II*\0", 4}, "TIFF"}, {{"MM\0*", 4}, "TIFF"}};
  for (const auto& [bytes, name] : kOthers) {
    if (begins_with(source, bytes)) return name;
  }
  if (begins_with(source, "RIFF") && begins_with(source, "WEBP", 8)) return "WebP";
  if (begins_with(source, "ftyp", 4)) return "HEIC, AVIF or a film";
  return "another format";
}

[[noreturn]] void refuse_format(const ByteSource& source) {
  if (source.size() == 0) {
    throw DataError(ErrorParts{.what = source.name() + " is empty.",
                               .expected = "a JPEG or PNG image",
                               .remedy = "Remove the file, or write it again."});
  }
  throw DataError(ErrorParts{.what = source.name() + " is neither JPEG nor PNG.",
                             .expected = "a JPEG or PNG image",
                             .received = format_of(source),
                             .remedy = "Convert the file, or move it out of the folder."});
}

Image read(const ByteSource& source, const Limits& limits, bool header_only) {
  if (is_jpeg(source)) return images::read_jpeg(source, limits, header_only);
  if (is_png(source)) return images::read_png(source, limits, header_only);
  refuse_format(source);
}

/// Pillow's: ITU-R 601-2.
uint8_t luminance(const uint8_t* rgb) {
  constexpr uint32_t kRed = 19595, kGreen = 38470, kBlue = 7471, kHalf = 0x8000;
  return static_cast<uint8_t>((rgb[0] * kRed + rgb[1] * kGreen + rgb[2] * kBlue + kHalf) >> 16);
}

}  // namespace

bool is_jpeg(const ByteSource& source) { return begins_with(source, kJpeg); }
bool is_png(const ByteSource& source) { return begins_with(source, kPng); }

ImageSize image_size(const ByteSource& source, const Limits& limits) {
  const Image image = read(source, limits, true);
  return {.width = image.width, .height = image.height};
}

Image decode_image(const ByteSource& source, int channels, const Limits& limits) {
  Image image = read(source, limits, false);
  if (image.channels == channels) return image;
  const size_t count = static_cast<size_t>(image.width) * static_cast<size_t>(image.height);
  std::vector<uint8_t> pixels(count * static_cast<size_t>(channels));
  for (size_t i = 0; i < count; ++i) {
    if (channels == 1) {
      pixels[i] = luminance(&image.pixels[3 * i]);
    } else {
      std::fill_n(&pixels[3 * i], 3, image.pixels[i]);
    }
  }
  image.channels = channels;
  image.pixels = std::move(pixels);
  return image;
}

namespace images {

void check_size(const ByteSource& source, uint64_t width, uint64_t height, const Limits& limits) {
  constexpr uint64_t kBytes = 12;  // of a pixel while it is decoded: coefficients, colours, grey
  const uint64_t most = std::min<uint64_t>(kMostPixels, limits.max_bytes / kBytes);
  if (width == 0 || height == 0) {
    throw DataError(ErrorParts{.what = source.name() + " has no pixels.",
                               .received = fmt::format("{} × {}", width, height)});
  }
  if (width <= most / height) return;
  throw DataError(ErrorParts{.what = source.name() + " has too many pixels.",
                             .expected = fmt::format("at most {}", most),
                             .received = fmt::format("{} × {}", width, height),
                             .remedy = most < kMostPixels
                                           ? "Make it smaller, or raise --max-bytes."
                                           : "Make it smaller, or move it out of the folder."});
}

void refuse_damaged(const ByteSource& source, const char* format, const std::string& why) {
  throw DataError(ErrorParts{.what = source.name() + " cannot be decoded.",
                             .expected = fmt::format("a complete {} image", format),
                             .received = why,
                             .remedy = "Write the file again, or move it out of the folder."});
}

size_t Cursor::next_block() {
  const uint64_t left = source_.size() - offset_;
  used_ = 0;
  held_ = static_cast<size_t>(std::min<uint64_t>(left, kBlock));
  source_.read(offset_, block_.data(), held_);
  offset_ += held_;
  return held_;
}

bool Cursor::take(void* out, size_t count) {
  if (count > (held_ - used_) + (source_.size() - offset_)) return false;
  auto* to = static_cast<uint8_t*>(out);
  while (count > 0) {
    if (used_ == held_) next_block();
    const size_t part = std::min(count, held_ - used_);
    std::memcpy(to, block_.data() + used_, part);
    used_ += part;
    to += part;
    count -= part;
  }
  return true;
}

}  // namespace images
}  // namespace steep
