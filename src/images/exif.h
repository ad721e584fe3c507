// What EXIF notes beside the pixels of an image.
#pragma once

#include "data/files.h"

namespace steep {

/// The orientation of a JPEG or PNG image: 1 as the pixels are stored, 2 to 8 turned or mirrored.
/// 1 also if there is none, or none that can be read: that never keeps an image from being decoded.
/// Throws IoError.
int exif_orientation(const ByteSource& source);

}  // namespace steep
