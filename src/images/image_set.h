// Images in folders, one folder for each class, and batches of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "steep/limits.h"
#include "steep/tensor.h"

namespace steep {

struct ImageSet {
  std::vector<std::string> files{};    ///< paths, in the order of the rows
  std::vector<int64_t> labels{};       ///< of each file, an index in `classes`; empty: no classes
  std::vector<std::string> classes{};  ///< names of folders, in the order of the labels
  int64_t others = 0;                  ///< files that are no images, and hidden ones: left out
  int64_t turned = 0;                  ///< images that EXIF asks to turn, which is not done
  std::string first_turned{};          ///< path of the first one
};

/// Whether the name ends in .jpg, .jpeg or .png, in any case.
bool has_image_name(const std::string& path);

/// Whether a folder has images, or folders that have some.
bool has_images(const std::string& folder);

/// Finds the images of paths: files, and folders. The images of a folder are in folders of its own,
/// one for each class and with any folders inside, or all directly in it, without classes. Classes
/// are sorted by name, and files in them by folder and name, as torchvision's ImageFolder does it;
/// names that begin with a dot are left out. Links are followed. `classes`: names in the order of
/// labels; empty: those that are found, sorted.
///
/// Reads the header of each file. Throws DataError that names the file or folder: images beside
/// folders of classes, paths with and without classes, a class without images, or that is not in
/// `classes`, formats that are not read, a folder inside of itself, more names than a quarter of
/// Limits::max_bytes holds, and what image_size() refuses. Throws IoError.
ImageSet find_images(std::span<const std::string> paths, const std::vector<std::string>& classes,
                     const Limits& limits = {});

/// What becomes of the pixels.
struct ImageForm {
  int64_t height = 0;
  int64_t width = 0;
  int channels = 3;              ///< 1 or 3
  bool channels_last = false;    ///< [rows, height, width, channels], else [rows, channels, …]
  bool whole = false;            ///< uint8, 0 to 255; else float32, 0 to 1
  std::vector<double> mean{};    ///< subtracted from floats: one, or one for each channel
  std::vector<double> stddev{};  ///< that they are divided by then
};

/// Decodes and resizes files, with the threads of OpenMP. Throws as decode_image() does, for the
/// first file that fails; OutOfMemoryError.
Tensor load_images(std::span<const std::string> files, const ImageForm& form,
                   const Limits& limits = {});

}  // namespace steep
