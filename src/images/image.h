// Decodes JPEG and PNG files to pixels of 8 bits, by libjpeg-turbo and libpng.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/files.h"
#include "steep/limits.h"

namespace steep {

struct Image {
  int64_t width = 0;
  int64_t height = 0;
  int channels = 0;               ///< 1: grey; 3: red, green, blue
  std::vector<uint8_t> pixels{};  ///< [height, width, channels], the top row first
};

struct ImageSize {
  int64_t width = 0;
  int64_t height = 0;
};

/// The greatest number of pixels, whatever the memory. Pillow has the same.
constexpr int64_t kMostPixels = 178'956'970;

/// Reads the header only. Throws the errors that decode_image() throws for a header.
ImageSize image_size(const ByteSource& source, const Limits& limits = {});

/// Decodes the pixels as Pillow does with convert("L") for one of `channels`, and convert("RGB")
/// for three: grey is repeated, colours become luminance, transparency is dropped, palettes and
/// CMYK become RGB. Numbers of 16 bits are rounded to 8. The orientation that EXIF may note is not
/// applied, and neither are colour profiles.
///
/// The format is that of the content, not of the name. Throws DataError that names the file: a file
/// that is neither JPEG nor PNG, that is truncated or damaged, whose form is not supported (12-bit
/// JPEG), or whose pixels exceed kMostPixels or Limits::max_bytes, which is checked before they are
/// decoded. Throws IoError.
Image decode_image(const ByteSource& source, int channels, const Limits& limits = {});

bool is_jpeg(const ByteSource& source);
bool is_png(const ByteSource& source);

namespace images {

// The parts of the above. `header_only`: no pixels. Channels of the result: 1 or 3, as in the file.
Image read_jpeg(const ByteSource& source, const Limits& limits, bool header_only);
Image read_png(const ByteSource& source, const Limits& limits, bool header_only);

/// Throws DataError if an image of this size is not to be decoded.
void check_size(const ByteSource& source, uint64_t width, uint64_t height, const Limits& limits);
/// Throws DataError: the file is damaged, for the reason that a library gives.
[[noreturn]] void refuse_damaged(const ByteSource& source, const char* format,
                                 const std::string& why);

/// Reads a source in order, in blocks.
class Cursor {
 public:
  explicit Cursor(const ByteSource& source) : source_(source), block_(kBlock) {}
  /// Reads the next block, of 1 to kBlock bytes; 0 at the end. Throws IoError.
  size_t next_block();
  const uint8_t* block() const { return block_.data(); }
  /// Copies the next `count` bytes. False, with nothing copied, if there are fewer.
  bool take(void* out, size_t count);

 private:
  static constexpr size_t kBlock = size_t{16} << 10;
  const ByteSource& source_;
  std::vector<uint8_t> block_;
  uint64_t offset_ = 0;         // of the next block
  size_t used_ = 0, held_ = 0;  // bytes of the block
};

}  // namespace images
}  // namespace steep
