// PNG, by libpng. Its errors leave by longjmp(), so that functions which call it have no objects
// with destructors.
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <exception>
#include <new>

#include "images/image.h"

namespace steep::images {
namespace {

constexpr size_t kMostChunk = size_t{8} << 20;  // bytes that texts and profiles may take

class Decoder {
 public:
  Decoder(const ByteSource& source, const Limits& limits)
      : source_(source), limits_(limits), cursor_(source) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, &Decoder::on_error,
                                  [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, nullptr, nullptr);
      throw std::bad_alloc();
    }
  }
  ~Decoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  Image decode(bool header_only) {
    guarded([this] { open(); });
    image_.width = png_get_image_width(png_, info_);
    image_.height = png_get_image_height(png_, info_);
    check_size(source_, static_cast<uint64_t>(image_.width), static_cast<uint64_t>(image_.height),
               limits_);
    if (header_only) return std::move(image_);
    guarded([this] { set_form(); });
    image_.channels = png_get_channels(png_, info_);
    const size_t bytes = static_cast<size_t>(image_.width) * static_cast<size_t>(image_.channels);
    if ((image_.channels != 1 && image_.channels != 3) || png_get_rowbytes(png_, info_) != bytes) {
      refuse_damaged(source_, "PNG", "another form of pixels");
    }
    image_.pixels.resize(bytes * static_cast<size_t>(image_.height));
    rows_.resize(static_cast<size_t>(image_.height));
    for (size_t y = 0; y < rows_.size(); ++y) rows_[y] = image_.pixels.data() + y * bytes;
    guarded([this] {
      png_read_image(png_, rows_.data());
      png_read_end(png_, nullptr);
    });
    return std::move(image_);
  }

 private:
  /// Calls f, which libpng may leave by on_error(). Throws what a callback caught, or DataError.
  template <typename F>
  void guarded(F&& f) {
    if (setjmp(jump_) == 0) {
      f();
      return;
    }
    if (thrown_) std::rethrow_exception(thrown_);
    refuse_damaged(source_, "PNG", message_.data());
  }

  [[noreturn]] static void on_error(png_structp png, png_const_charp why) {
    auto* self = static_cast<Decoder*>(png_get_error_ptr(png));
    std::snprintf(self->message_.data(), self->message_.size(), "%s", why);
    std::longjmp(self->jump_, 1);
  }

  static void on_read(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<Decoder*>(png_get_io_ptr(png));
    bool there = false;
    try {
      there = self->cursor_.take(out, count);
    } catch (...) {
      self->thrown_ = std::current_exception();
    }
    if (!there) png_error(png, "a file that ends too early");
  }

  void open() {
    png_set_read_fn(png_, this, &Decoder::on_read);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // check_size() is the limit
    png_set_chunk_malloc_max(png_, kMostChunk);
    png_read_info(png_, info_);
  }

  /// One or three channels of 8 bits.
  void set_form() {
    png_set_scale_16(png_);
    png_set_palette_to_rgb(png_);
    png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  }

  const ByteSource& source_;
  const Limits& limits_;
  Cursor cursor_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  std::array<char, 200> message_{};
  std::exception_ptr thrown_;
  Image image_;
  std::vector<png_bytep> rows_;
};

}  // namespace

Image read_png(const ByteSource& source, const Limits& limits, bool header_only) {
  return Decoder(source, limits).decode(header_only);
}

}  // namespace steep::images
