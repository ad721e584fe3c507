// Rows of --data that are read for each batch: of images, and of files that are larger than memory.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cli/image_data.h"
#include "cli/read_data.h"

namespace steep::cli {

/// An array whose rows lie in several files, too large to be joined in memory: each batch takes its
/// rows from the files that have them.
class FarRows {
 public:
  /// `dtype`: of the result, if the parts have several.
  FarRows(Joined parts, DType dtype);
  /// The numbers of the rows, which stand for them until take().
  Tensor numbers() const;
  Tensor take(const Tensor& numbers) const;

 private:
  Joined joined_;
  std::vector<int64_t> ends_;  // of the parts, as numbers of rows
  DType dtype_;
};

/// What is read for each batch; the arrays that Batches cuts have the numbers of rows.
struct LateRows {
  ImageFeed images{};
  std::map<size_t, FarRows> far{};  ///< by index of the input
  /// The rows of input `input` for what Batches gives.
  Tensor read(size_t input, const Tensor& batch) const;
  std::vector<Tensor> read(std::vector<Tensor> batch) const;
};

}  // namespace steep::cli
