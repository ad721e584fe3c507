// Any bytes read as an image are accepted or refused with a steep::Error. The first byte says what
// becomes of the pixels.
#include <cstddef>
#include <cstdint>
#include <span>

#include "images/exif.h"
#include "images/image.h"
#include "images/resize.h"
#include "steep/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace steep;
  if (size == 0) return 0;
  const Limits limits{.max_bytes = uint64_t{16} << 20};
  const int channels = (data[0] & 1) != 0 ? 1 : 3;
  const int64_t width = 1 + (data[0] >> 1 & 7), height = 1 + (data[0] >> 4);
  try {
    const MemorySource source(std::as_bytes(std::span(data, size).subspan(1)), "input");
    exif_orientation(source);
    image_size(source, limits);
    resize(decode_image(source, channels, limits), width, height);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the expected refusal
  }
  return 0;
}
