// Resizes images.
#pragma once

#include <cstdint>

#include "images/image.h"

namespace steep {

/// Bilinear with antialiasing: each result is a mean over the pixels that it covers, weighed by a
/// triangle. The numbers are those of Pillow's resize(…, BILINEAR) with the whole image as its box,
/// and of torchvision's Resize((height, width)) on Pillow images: the ratio of the sides may
/// change. `width` and `height` are positive.
Image resize(const Image& image, int64_t width, int64_t height);

}  // namespace steep
