#include "cli/image_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "cli/command_line.h"
#include "data/convert.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

constexpr int64_t kMostSide = 65'535;

/// "32" → {32, 32}; "24,32" → {24, 32}. Nothing if it cannot be read.
std::optional<std::pair<int64_t, int64_t>> sides_of(const std::string& text) {
  std::vector<int64_t> sides;
  for (const std::string& word : CLI::detail::split(text, ',')) {
    int64_t side = 0;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, side);
    if (error != std::errc{} || stop != end || side < 1 || side > kMostSide) return {};
    sides.push_back(side);
  }
  if (sides.empty() || sides.size() > 2) return {};
  return std::pair(sides.front(), sides.back());
}

}  // namespace

void add_image_options(CLI::App& app, ImageArguments& choice, bool labels) {
  app.add_option("--image-size", choice.size,
                 "Resize images to this height and width, as in 224 or 240,320 (default: those of\n"
                 "the model's input)")
      ->check([](const std::string& word) {
        return sides_of(word) ? std::string()
                              : fmt::format(
                                    "expected a side, or height and width, from 1 to {}, "
                                    "as in 240,320, received '{}'",
                                    kMostSide, word);
      });
  constexpr double kMostNumber = 1e6;
  app.add_option("--image-mean", choice.mean,
                 "Subtract from the numbers of images, which are 0 to 1: one number, or one for\n"
                 "each channel, as in 0.485,0.456,0.406")
      ->delimiter(',')
      ->transform(real(-kMostNumber, kMostNumber));
  app.add_option("--image-std", choice.stddev, "Then divide by these, as in 0.229,0.224,0.225")
      ->delimiter(',')
      ->transform(real(1 / kMostNumber, kMostNumber));
  if (!labels) return;
  app.add_option("--image-classes", choice.classes,
                 "Names of the folders of images in the order of their labels, as in cat,dog\n"
                 "(default: all that are there, sorted; with --validation those of --data)")
      ->delimiter(',')
      ->check([](const std::string& word) {
        return word.empty() ? std::string("expected names, as in cat,dog") : std::string();
      });
}

ImageForm image_form(const ImageArguments& choice, const TensorInfo& input) {
  const auto sides = sides_of(choice.size).value_or(std::pair<int64_t, int64_t>());
  return image_form(
      input,
      {.height = sides.first, .width = sides.second, .mean = choice.mean, .stddev = choice.stddev});
}

std::string ImageFeed::text() const {
  const std::string sides = fmt::format("{} × {}", form.height, form.width);
  std::string result = fmt::format("{}, {} of {} pixels", counted(set->files.size(), "image"),
                                   form.channels == 1 ? "grey" : "RGB", sides);
  result += form.channels_last ? ", channels last" : "";
  result += form.whole ? ", 0 to 255" : ", 0 to 1";
  if (!form.mean.empty()) result += fmt::format(", less {}", fmt::join(form.mean, ","));
  if (!form.stddev.empty()) result += fmt::format(", by {}", fmt::join(form.stddev, ","));
  return result;
}

std::string class_text(const ImageSet& images) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < std::min(images.classes.size(), kShown); ++i)
    text += fmt::format("{}{} '{}'", i == 0 ? "; classes: " : ", ", i, images.classes[i]);
  if (images.classes.size() > kShown)
    text += fmt::format(" and {} more", images.classes.size() - kShown);
  if (images.others > 0) {
    text += fmt::format("; {} not used", counted(images.others, "hidden or other file"));
  }
  return text;
}

std::string turned_text(const ImageSet& images) {
  if (images.turned == 0) return "";
  const bool one = images.turned == 1;
  return fmt::format(
      "EXIF asks to turn {} of {} images, which is not done: {} fed as stored, as torchvision "
      "does; "
      "the first is {}. To train on upright images, turn the files (exiftran -ai, or Pillow's "
      "ImageOps.exif_transpose)",
      images.turned, images.files.size(), one ? "it is" : "they are", images.first_turned);
}

Tensor images_at(const ImageFeed& images, const Tensor& array) {
  std::vector<std::string> files;
  for (int64_t i = 0; i < array.size(); ++i)
    files.push_back(images.set->files[static_cast<size_t>(array.data<int64_t>()[i])]);
  return convert(load_images(files, images.form, images.limits), images.dtype, "image");
}

}  // namespace steep::cli
