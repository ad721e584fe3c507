// The arrays in the files of --data.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "images/image_set.h"
#include "steep/error.h"
#include "steep/limits.h"
#include "steep/tensor.h"

namespace steep::cli {

using Arrays = std::map<std::string, Tensor>;

std::vector<std::string> names_of(const Arrays& arrays);

/// The names of the arrays that an ImageSet gives: the numbers of its files, and its labels.
constexpr const char* kImageArray = "image";
constexpr const char* kImageLabels = "label";

struct Loaded {
  std::string text;  ///< names of the files
  Arrays arrays{};
  std::vector<std::string> columns{};             ///< names of the columns of tables, in order
  std::set<std::string> mapped{};                 ///< names of the arrays that are mapped, not read
  std::map<std::string, std::string> not_read{};  ///< why columns are left out, by name
  std::map<std::string, ErrorParts> refused{};    ///< errors of those of them that are in CSV files
  std::shared_ptr<const ImageSet> images{};       ///< what kImageArray counts; null: no images
  bool is_column(const std::string& name) const;
};

/// Reads files and folders. `classes`: of images, as find_images() takes them. Files with the same
/// arrays are concatenated, those with different arrays combined. Throws DataError, which names the
/// file, and IoError.
Loaded load(const std::vector<std::string>& names, const std::vector<std::string>& classes,
            const Limits& limits);

/// Concatenates along the first axis. Throws ShapeError, which names `name`, if other extents or
/// dtypes differ.
Tensor join_rows(const std::vector<Tensor>& parts, const std::string& name);

/// "float32[10, 3]"
std::string describe(const Tensor& array);

}  // namespace steep::cli
