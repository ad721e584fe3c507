// Images: pixels, forms of files, sizes, and errors for damaged ones. Python's tests compare with
// Pillow (tests/python/program/test_images.py).
#include "images/image.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "data/files.h"
#include "images/image_set.h"
#include "images/resize.h"
#include "steep/error.h"

namespace steep {
namespace {

std::string big_endian(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

std::string chunk(const std::string& kind, const std::string& data) {
  const std::string body = kind + data;
  const uLong crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body +
         big_endian(static_cast<uint32_t>(crc));
}

/// A PNG file; `rows`: its bytes, each row behind a zero.
std::string png(uint32_t width, uint32_t height, char depth, char colour, const std::string& rows) {
  uLongf size = compressBound(static_cast<uLong>(rows.size()));
  std::string packed(size, '\0');
  compress(reinterpret_cast<Bytef*>(packed.data()), &size,
           reinterpret_cast<const Bytef*>(rows.data()), static_cast<uLong>(rows.size()));
  packed.resize(size);
  const std::string head =
      big_endian(width) + big_endian(height) + depth + colour + std::string(3, '\0');
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR", head) + chunk("IDAT", packed) + chunk("IEND", "");
}

constexpr char kGrey = 0, kRgb = 2, kRgba = 6;

std::string bytes(std::initializer_list<int> values) {
  std::string result;
  for (const int value : values) result += static_cast<char>(value);
  return result;
}

Image decode(const std::string& file, int channels = 3, const Limits& limits = {}) {
  return decode_image(MemorySource(std::as_bytes(std::span(file)), "t.png"), channels, limits);
}

std::string refusal(const std::string& file, const Limits& limits = {}) {
  try {
    decode(file, 3, limits);
  } catch (const DataError& error) {
    EXPECT_NE(error.parts().what.find("t.png"), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was read";
  return "";
}

TEST(Images, ChannelsAreRepeatedWeighedOrDropped) {
  using Pixels = std::vector<uint8_t>;
  EXPECT_EQ(decode(png(2, 1, 8, kGrey, bytes({0, 7, 200}))).pixels,
            (Pixels{7, 7, 7, 200, 200, 200}));
  EXPECT_EQ(decode(png(2, 1, 8, kGrey, bytes({0, 7, 200})), 1).pixels, (Pixels{7, 200}));
  EXPECT_EQ(decode(png(1, 1, 8, kRgb, bytes({0, 10, 20, 30}))).pixels, (Pixels{10, 20, 30}));
  EXPECT_EQ(decode(png(1, 1, 8, kRgb, bytes({0, 10, 20, 30})), 1).pixels, (Pixels{18}));
  EXPECT_EQ(decode(png(1, 1, 8, kRgba, bytes({0, 10, 20, 30, 0}))).pixels, (Pixels{10, 20, 30}));
  EXPECT_EQ(decode(png(1, 1, 16, kGrey, bytes({0, 255, 255})), 1).pixels, (Pixels{255}));
  EXPECT_EQ(decode(png(1, 1, 16, kGrey, bytes({0, 1, 255})), 1).pixels, (Pixels{2}));
  EXPECT_EQ(decode(png(8, 1, 1, kGrey, bytes({0, 0x81})), 1).pixels,
            (Pixels{255, 0, 0, 0, 0, 0, 0, 255}));
}

TEST(Images, EachTruncationIsAnError) {
  const std::string file = png(3, 2, 8, kRgb, std::string("\0abcdefghi\0jklmnopqr", 20));
  EXPECT_EQ(decode(file).height, 2);
  for (size_t size = 0; size < file.size(); ++size) refusal(file.substr(0, size));
}

TEST(Images, EachChangedByteIsReadOrRefused) {
  const std::string file = png(3, 2, 8, kRgb, std::string("\0abcdefghi\0jklmnopqr", 20));
  for (size_t at = 0; at < file.size(); ++at) {
    for (const int mask : {1, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      try {
        decode(changed, 3, {.max_bytes = size_t{1} << 24});
      } catch (const DataError& error) {
        EXPECT_NE(error.parts().what.find("t.png"), std::string::npos);
      }
    }
  }
}

TEST(Images, SizesAreLimitedBeforePixelsAreDecoded) {
  EXPECT_NE(refusal(png(1U << 30, 1U << 30, 8, kRgb, "")).find("too many pixels"),
            std::string::npos);
  EXPECT_NE(refusal(png(100, 100, 8, kRgb, ""), {.max_bytes = 100'000}).find("at most 8333"),
            std::string::npos);
  EXPECT_NE(refusal("").find("is empty"), std::string::npos);
  EXPECT_NE(refusal("GIF89a").find("GIF"), std::string::npos);
  EXPECT_NE(refusal("text").find("neither JPEG nor PNG"), std::string::npos);
  EXPECT_NE(refusal("\xff\xd8\xff").find("ends too early"), std::string::npos);
}

TEST(Images, ResizingWeighsAllPixels) {
  const Image image{.width = 4, .height = 1, .channels = 1, .pixels = {0, 0, 255, 255}};
  EXPECT_EQ(resize(image, 2, 1).pixels, (std::vector<uint8_t>{36, 219}));
  EXPECT_EQ(resize(image, 1, 1).pixels, (std::vector<uint8_t>{128}));
  EXPECT_EQ(resize(image, 4, 2).pixels, (std::vector<uint8_t>{0, 0, 255, 255, 0, 0, 255, 255}));
  EXPECT_EQ(resize(image, 4, 1).pixels, image.pixels);
}

class ImageFolders : public testing::Test {
 protected:
  void SetUp() override {
    root_ =
        std::filesystem::path(testing::TempDir()) /
        ("images_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void add(const std::string& name, int grey = 0) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name, std::ios::binary) << png(1, 1, 8, kGrey, bytes({0, grey}));
  }
  ImageSet find(const std::vector<std::string>& classes = {}, const Limits& limits = {}) const {
    const std::string path = root_.string();
    return find_images(std::span(&path, 1), classes, limits);
  }
  std::string refusal(const std::vector<std::string>& classes = {},
                      const Limits& limits = {}) const {
    try {
      find(classes, limits);
    } catch (const Error& error) {
      return error.what();
    }
    ADD_FAILURE() << "was read";
    return "";
  }

  std::filesystem::path root_;
};

TEST_F(ImageFolders, ClassesAndFilesAreSorted) {
  for (const char* name :
       {"b/2.png", "b/10.PNG", "B/x.png", "b/a/1.png", "b/notes.txt", "b/.h.png"})
    add(name);
  const ImageSet set = find();
  EXPECT_EQ(set.classes, (std::vector<std::string>{"B", "b"}));
  EXPECT_EQ(set.labels, (std::vector<int64_t>{0, 1, 1, 1}));
  EXPECT_EQ(set.files[1], (root_ / "b/10.PNG").string());
  EXPECT_EQ(set.files[2], (root_ / "b/2.png").string());
  EXPECT_EQ(set.files[3], (root_ / "b/a/1.png").string());
  EXPECT_EQ(set.others, 2);
  EXPECT_EQ(find({"b", "c", "B"}).labels, (std::vector<int64_t>{0, 0, 0, 2}));
  EXPECT_NE(refusal({"b"}).find("none of the classes"), std::string::npos);
}

TEST_F(ImageFolders, RefusesWhatWouldChangeTheDataInSilence) {
  add("a/1.png");
  std::filesystem::create_directories(root_ / "empty");
  EXPECT_NE(refusal().find("a class without images"), std::string::npos);
  std::filesystem::remove(root_ / "empty");
  add("a/2.webp");
  EXPECT_NE(refusal().find("2.webp is an image that is not read"), std::string::npos);
  std::filesystem::remove(root_ / "a/2.webp");
  add("loose.png");
  EXPECT_NE(refusal().find("has images beside folders"), std::string::npos);
  std::filesystem::remove(root_ / "loose.png");
  EXPECT_NE(refusal({}, {.max_bytes = 500}).find("too many images"), std::string::npos);
}

TEST_F(ImageFolders, LinksAreFollowedButNotInCircles) {
  add("a/1.png");
  add("../images_outside/2.png");
  std::filesystem::create_symlink(root_ / "../images_outside/2.png", root_ / "a/2.png");
  EXPECT_EQ(find().files.size(), 2U);
  std::filesystem::create_symlink("3.png", root_ / "a/3.png");
  EXPECT_NE(refusal().find("3.png"), std::string::npos);
  std::filesystem::remove(root_ / "a/3.png");
  std::filesystem::create_directory_symlink("..", root_ / "a/up");
  EXPECT_NE(refusal().find("inside of itself"), std::string::npos);
  std::filesystem::remove_all(root_ / "../images_outside");
}

TEST_F(ImageFolders, FormsAreThoseOfTheInput) {
  add("a/1.png", 0);
  add("a/2.png", 255);
  const std::vector<std::string> files = find().files;
  ImageForm form{.height = 1, .width = 2, .channels = 3, .mean = {0.5}, .stddev = {0.5, 1, 2}};
  const Tensor floats = load_images(files, form);
  EXPECT_EQ(floats.dims(), (Dims{2, 3, 1, 2}));
  const std::array<float, 12> expected{-1, -1, -0.5, -0.5, -0.25, -0.25,
                                       1,  1,  0.5,  0.5,  0.25,  0.25};
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), floats.data<float>()));
  form.channels_last = form.whole = true;
  const Tensor whole = load_images(files, form);
  EXPECT_EQ(whole.dims(), (Dims{2, 1, 2, 3}));
  EXPECT_EQ(whole.data<uint8_t>()[6], 255);
  std::filesystem::resize_file(files[1], 50);
  EXPECT_THROW(load_images(files, form), DataError);
  std::filesystem::remove(files[0]);
  EXPECT_THROW(load_images(files, form), IoError);
}

}  // namespace
}  // namespace steep
