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

template <typename Array>
std::vector<std::string> names_of(const std::map<std::string, Array>& arrays) {
  std::vector<std::string> names;
  for (const auto& [name, array] : arrays) names.push_back(name);
  return names;
}

/// The names of the arrays that an ImageSet gives: the numbers of its files, and its labels.
constexpr const char* kImageArray = "image";
constexpr const char* kImageLabels = "label";

/// An array that lies in one file or in several: rows of one form, one file behind the other. A
/// text file has no types, and other readers have their own: types may differ.
struct Joined {
  std::vector<Tensor> parts{};       ///< empty until take()
  std::vector<std::string> paths{};  ///< the file of each part
  int64_t rows() const;
  std::string text() const;  ///< "float32[10, 3]"
};

using JoinedArrays = std::map<std::string, Joined>;

/// A file of --data.
struct DataFile {
  std::string path;
  Arrays arrays{};     ///< of a Parquet file: names, without values
  bool later = false;  ///< values are read by take()
};

struct Loaded {
  std::string text;  ///< names of the files
  JoinedArrays arrays{};
  std::vector<std::vector<DataFile>> groups{};    ///< files with the same names of arrays
  std::vector<std::string> columns{};             ///< names of the columns of tables, in order
  std::set<std::string> column_names{};           ///< the same
  std::set<std::string> mapped{};                 ///< names of the arrays that are mapped, not read
  std::map<std::string, std::string> not_read{};  ///< why columns are left out, by name
  std::map<std::string, ErrorParts> refused{};    ///< errors of those of them that are in CSV files
  std::shared_ptr<const ImageSet> images{};       ///< what kImageArray counts; null: no images
  bool is_column(const std::string& name) const;
};

/// Finds files and folders, and the names of their arrays. `classes`: of images, as find_images()
/// takes them. Files with the same arrays are concatenated, those with different arrays combined.
/// Throws DataError, which names the file, and IoError.
Loaded load(const std::vector<std::string>& names, const std::vector<std::string>& classes,
            const Limits& limits);

/// Reads these arrays, and forgets all others: columns of Parquet files that nobody takes are not
/// read. Throws as load() does, and ShapeError for files whose rows have other extents.
void take(Loaded* data, const std::set<std::string>& names, const Limits& limits);

/// Concatenates along the first axis. Throws ShapeError, which names `name`, if other extents or
/// dtypes differ.
Tensor join_rows(const std::vector<Tensor>& parts, const std::string& name);

/// "float32[10, 3]"
std::string describe(const Tensor& array);

}  // namespace steep::cli
