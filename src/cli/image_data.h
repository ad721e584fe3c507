// Images of --data: their options, what becomes of them for a model, and batches that read them.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "images/image_form.h"
#include "images/image_set.h"
#include "steep/data.h"
#include "steep/steep.h"

namespace steep::cli {

/// --image-size, --image-mean, --image-std, --image-classes.
struct ImageArguments {
  std::string size;  ///< "32" or "24,32"
  std::vector<double> mean;
  std::vector<double> stddev;
  std::vector<std::string> classes;
  bool given() const {
    return !size.empty() || !mean.empty() || !stddev.empty() || !classes.empty();
  }
};
/// `labels`: also --image-classes.
void add_image_options(CLI::App& app, ImageArguments& choice, bool labels);

/// The images for an input.
struct ImageFeed {
  std::shared_ptr<const ImageSet> set{};  ///< null: no input is fed with images
  size_t input = 0;                       ///< index of that input; its array has numbers of files
  DType dtype = DType::f32;               ///< of the input
  ImageForm form{};
  Limits limits{};
  std::string text() const;  ///< "24 images, resized to 3 × 32 × 32 …"
};

/// As image_form() of a size, means and deviations.
ImageForm image_form(const ImageArguments& choice, const TensorInfo& input);

/// "classes: 0 'cat', 1 'dog'", and those left out; "" without classes.
std::string class_text(const ImageSet& images);

/// "3 images have an orientation in EXIF …"; "" if none has.
std::string turned_text(const ImageSet& images);

/// The rows of `array`, numbers of files, as images.
Tensor images_at(const ImageFeed& images, const Tensor& array);

}  // namespace steep::cli
