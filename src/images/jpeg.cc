// JPEG, by libjpeg-turbo. Its errors leave by longjmp(), so that functions which call it have no
// objects with destructors.
#include <cstddef>
#include <cstdio>
// Needs the two above.
#include <jpeglib.h>
// The numbers of messages depend on macros of jpeglib.h.
#include <jerror.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <exception>
#include <new>
#include <utility>

#include "images/image.h"

namespace steep::images {
namespace {

constexpr int kMostScans = 500;  // a progressive image has about ten

/// A decoder and what its callbacks need. libjpeg's structures point to it.
class Decoder {
 public:
  Decoder(const ByteSource& source, const Limits& limits)
      : source_(source), limits_(limits), cursor_(source) {
    info_.err = jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr info) { self(info)->leave(); };
    errors_.emit_message = [](j_common_ptr info, int level) { self(info)->hear(level); };
    errors_.output_message = [](j_common_ptr) {};
    info_.client_data = this;
  }
  ~Decoder() { jpeg_destroy_decompress(&info_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Image decode(bool header_only) {
    guarded([this] { open(); });
    check_size(source_, info_.image_width, info_.image_height, limits_);
    image_.width = info_.image_width;
    image_.height = info_.image_height;
    image_.channels = info_.jpeg_color_space == JCS_GRAYSCALE ? 1 : 3;
    if (header_only) return std::move(image_);
    const bool inks = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = inks ? JCS_CMYK : image_.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    image_.pixels.resize(static_cast<size_t>(image_.width) * static_cast<size_t>(image_.height) *
                         static_cast<size_t>(image_.channels));
    if (inks) inks_.resize(static_cast<size_t>(image_.width) * 4);
    guarded([this] { read_rows(); });
    return std::move(image_);
  }

 private:
  template <typename Info>
  static Decoder* self(Info* info) {
    return static_cast<Decoder*>(info->client_data);
  }

  /// Calls f, which libjpeg may leave by leave(). Throws what a callback caught, or DataError.
  template <typename F>
  void guarded(F&& f) {
    if (setjmp(jump_) == 0) {
      f();
      return;
    }
    if (thrown_) std::rethrow_exception(thrown_);
    if (errors_.msg_code == JERR_OUT_OF_MEMORY) throw std::bad_alloc();
    refuse_damaged(source_, "JPEG", message_.data());
  }

  [[noreturn]] void leave() {
    if (!thrown_ && message_[0] == '\0') {
      errors_.format_message(reinterpret_cast<j_common_ptr>(&info_), message_.data());
    }
    std::longjmp(jump_, 1);
  }

  [[noreturn]] void leave(const char* why) {
    std::snprintf(message_.data(), message_.size(), "%s", why);
    leave();
  }

  /// Warnings that mean that pixels were lost are errors.
  void hear(int level) {
    if (level >= 0) return;
    switch (errors_.msg_code) {
      case JWRN_ARITH_BAD_CODE:
      case JWRN_HIT_MARKER:
      case JWRN_HUFF_BAD_CODE:
      case JWRN_JPEG_EOF:
      case JWRN_MUST_RESYNC: leave();
      default: break;
    }
  }

  void open() {
    jpeg_create_decompress(&info_);
    info_.client_data = this;
    from_.init_source = [](j_decompress_ptr) {};
    from_.fill_input_buffer = [](j_decompress_ptr info) { return self(info)->fill(); };
    from_.skip_input_data = [](j_decompress_ptr info, long count) { self(info)->skip(count); };
    from_.resync_to_restart = jpeg_resync_to_restart;
    from_.term_source = [](j_decompress_ptr) {};
    info_.src = &from_;
    progress_.progress_monitor = [](j_common_ptr info) { self(info)->count_scans(); };
    info_.progress = &progress_;
    jpeg_read_header(&info_, TRUE);
  }

  boolean fill() {
    size_t count = 0;
    try {
      count = cursor_.next_block();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    if (thrown_) leave();
    if (count == 0) leave("a file that ends too early");
    from_.next_input_byte = cursor_.block();
    from_.bytes_in_buffer = count;
    return TRUE;
  }

  void skip(long count) {
    if (count <= 0) return;
    auto left = static_cast<size_t>(count);
    while (left > from_.bytes_in_buffer) {
      left -= from_.bytes_in_buffer;
      fill();
    }
    from_.next_input_byte += left;
    from_.bytes_in_buffer -= left;
  }

  void count_scans() {
    if (info_.input_scan_number > kMostScans) leave("more than 500 scans");
  }

  void read_rows() {
    jpeg_start_decompress(&info_);
    const size_t bytes = static_cast<size_t>(image_.width) * static_cast<size_t>(image_.channels);
    while (info_.output_scanline < info_.output_height) {
      uint8_t* to = image_.pixels.data() + info_.output_scanline * bytes;
      JSAMPROW row = inks_.empty() ? to : inks_.data();
      jpeg_read_scanlines(&info_, &row, 1);
      if (!inks_.empty()) convert_inks(to);
    }
    jpeg_finish_decompress(&info_);
  }

  /// As Pillow: inks are stored inverted, as Adobe does, and black darkens the other three.
  void convert_inks(uint8_t* to) const {
    for (size_t i = 0; i < inks_.size(); i += 4) {
      const uint32_t light = inks_[i + 3];
      for (size_t c = 0; c < 3; ++c) {
        const uint32_t product = (255U - inks_[i + c]) * light + 128;
        *to++ = static_cast<uint8_t>(light - std::min(light, ((product >> 8) + product) >> 8));
      }
    }
  }

  const ByteSource& source_;
  const Limits& limits_;
  Cursor cursor_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr from_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> message_{};
  std::exception_ptr thrown_;
  Image image_;
  std::vector<uint8_t> inks_;  // a row of CMYK
};

}  // namespace

Image read_jpeg(const ByteSource& source, const Limits& limits, bool header_only) {
  return Decoder(source, limits).decode(header_only);
}

}  // namespace steep::images
