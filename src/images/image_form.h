// The form of images that a model's input takes.
#pragma once

#include <cstdint>
#include <vector>

#include "images/image_set.h"
#include "steep/steep.h"

namespace steep {

/// What the user chooses.
struct ImageChoice {
  int64_t height = 0;  ///< 0: that of the input
  int64_t width = 0;
  std::vector<double> mean{};    ///< subtracted: one, or one for each channel
  std::vector<double> stddev{};  ///< that is divided by then
};

/// The form that suits an input: of floats or uint8, [rows, channels, height, width] or [rows,
/// height, width, channels], with 1 or 3 channels. Throws ShapeError, which names the input, if it
/// is none, if height or width are open and no size is chosen, or if they differ from it;
/// DataError for means or deviations that do not suit the channels, or of uint8.
ImageForm image_form(const TensorInfo& input, const ImageChoice& choice);

}  // namespace steep
