#include "images/image_form.h"

#include <fmt/format.h>

#include <string>

#include "data/convert.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

bool is_count(int64_t extent) { return extent == 1 || extent == 3; }

[[noreturn]] void refuse_input(const TensorInfo& input, const std::string& expected,
                               const std::string& remedy) {
  throw ShapeError(ErrorParts{.what = "Images do not suit the model's input.",
                              .node = input.name,
                              .expected = expected,
                              .received = input.text(),
                              .remedy = remedy});
}

void check_numbers(const std::vector<double>& values, const char* option, int channels) {
  if (values.size() <= 1 || values.size() == static_cast<size_t>(channels)) return;
  throw DataError(ErrorParts{
      .what = fmt::format("{} does not suit the model's input.", option),
      .expected = fmt::format("one number, or one for each of {}", counted(channels, "channel")),
      .received = counted(values.size(), "number")});
}

}  // namespace

ImageForm image_form(const TensorInfo& input, const ImageChoice& choice) {
  const bool floats = input.dtype == DType::f32 || converts(DType::f32, input.dtype);
  if ((!floats && input.dtype != DType::u8) || !input.has_rank || input.dims.size() != 4) {
    refuse_input(input, "floats or uint8 of 4 axes: rows, channels, height, width", "");
  }
  const bool first = is_count(input.dims[1]), last = is_count(input.dims[3]);
  if (first == last) {
    refuse_input(input, "1 or 3 channels on the second or the last axis",
                 first ? "Feed arrays: either axis may be the channels'."
                       : "Feed arrays, or export the model with a fixed number of channels.");
  }
  ImageForm form{.channels_last = last, .whole = input.dtype == DType::u8};
  form.channels = static_cast<int>(input.dims[last ? 3 : 1]);
  form.height = input.dims[last ? 1 : 2];
  form.width = input.dims[last ? 2 : 3];
  if (choice.height > 0) {
    if ((form.height > 0 && form.height != choice.height) ||
        (form.width > 0 && form.width != choice.width)) {
      refuse_input(input, fmt::format("the chosen size, {},{}", choice.height, choice.width),
                   "Leave --image-size out (in Python: size): the model fixes both.");
    }
    form.height = choice.height;
    form.width = choice.width;
  }
  if (form.height <= 0 || form.width <= 0) {
    refuse_input(input, "a height and a width",
                 "Give both: --image-size 224, or 240,320 (in Python: size=224).");
  }
  if (form.whole && (!choice.mean.empty() || !choice.stddev.empty())) {
    throw DataError(ErrorParts{
        .what = "--image-mean and --image-std (in Python: mean, std) are for inputs of floats.",
        .node = input.name,
        .received = input.text()});
  }
  check_numbers(choice.mean, "--image-mean (in Python: mean)", form.channels);
  check_numbers(choice.stddev, "--image-std (in Python: std)", form.channels);
  form.mean = choice.mean;
  form.stddev = choice.stddev;
  return form;
}

}  // namespace steep
