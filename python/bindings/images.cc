// Images in folders, as data.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "images/image_form.h"
#include "images/image_set.h"
#include "runtime/budget.h"

namespace steep::python {

void init_images(nb::module_& m) {
  const nb::call_guard<nb::gil_scoped_release> unlocked;
  nb::class_<ImageForm>(m, "ImageForm", "What becomes of pixels for an input of a model.");
  nb::class_<ImageSet>(m, "ImageSet", "Files of images, and the classes that folders give them.")
      .def_prop_ro("files",
                   [](const ImageSet& set) {
                     return std::vector<std::filesystem::path>(set.files.begin(), set.files.end());
                   })
      .def_ro("labels", &ImageSet::labels)
      .def_ro("classes", &ImageSet::classes)
      .def_ro("turned", &ImageSet::turned)
      .def_prop_ro("first_turned",
                   [](const ImageSet& set) { return std::filesystem::path(set.first_turned); })
      .def(
          "load",
          [](const ImageSet& set, const std::vector<int64_t>& rows, const ImageForm& form) {
            const Budget budget{Limits{}};
            std::vector<std::string> files;
            for (const int64_t row : rows) files.push_back(set.files.at(static_cast<size_t>(row)));
            return load_images(files, form);
          },
          nb::arg("rows"), nb::arg("form"), unlocked,
          "Decoded and resized. Raises DataError, which names the file.");
  m.def(
      "find_images",
      [](const std::vector<std::filesystem::path>& paths, const std::vector<std::string>& classes) {
        const Budget budget{Limits{}};
        return find_images(std::vector<std::string>(paths.begin(), paths.end()), classes);
      },
      nb::arg("paths"), nb::arg("classes"), unlocked, "Raises DataError and IoError.");
  m.def(
      "image_form",
      [](const TensorInfo& input, int64_t height, int64_t width, std::vector<double> mean,
         std::vector<double> stddev) {
        return image_form(input, {.height = height,
                                  .width = width,
                                  .mean = std::move(mean),
                                  .stddev = std::move(stddev)});
      },
      nb::arg("input"), nb::arg("height"), nb::arg("width"), nb::arg("mean"), nb::arg("std"),
      "height, width: 0 for those of the input. Raises ShapeError and DataError.");
}

}  // namespace steep::python
