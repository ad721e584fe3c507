// Arrays from files, and mini-batches of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "steep/limits.h"
#include "steep/tensor.h"

namespace steep {

/// Every array of an .npz (stored or deflated; pickled objects are refused) or .safetensors file,
/// recognised by content. Throws DataError that names the file and the array if it is damaged or
/// exceeds a limit, IoError if it cannot be read.
std::map<std::string, Tensor> load_arrays(const std::filesystem::path& path,
                                          const Limits& limits = {});

/// The same, but arrays with the layout of tensors are mapped and not read: the system reads their
/// pages of the file when they are used. These are .npy files, and arrays that an .npz file stores
/// without compression, in row-major order and of this machine's byte order; no bools. Mapped
/// arrays do not count as memory (Limits::max_bytes), their checksums are not verified, and the
/// file must not change: if it becomes shorter, the process ends with SIGBUS. All other arrays are
/// read.
std::map<std::string, Tensor> map_arrays(const std::filesystem::path& path,
                                         const Limits& limits = {});

/// Writes an uncompressed .npz file that numpy.load reads, or a .safetensors file, depending on the
/// extension. It is written under another name and then renamed: an older file stays complete until
/// the new one is. Throws IoError.
void save_arrays(const std::filesystem::path& path, const std::map<std::string, Tensor>& arrays);

/// Rows [begin, end) along the first axis; shares the bytes. Throws ShapeError when out of range.
Tensor rows(const Tensor& tensor, int64_t begin, int64_t end);

/// Copies the given rows, in that order, into a new tensor. Throws ShapeError when out of range.
Tensor take_rows(const Tensor& tensor, const std::vector<int64_t>& indices);

struct BatchOptions {
  int64_t batch_size = 32;
  bool shuffle = true;
  bool drop_last = false;  ///< leave out a last batch that is not full
  uint64_t seed = 0;
  std::vector<int64_t> rows{};  ///< the rows to use; all others are ignored. Empty: all rows
};

/// Mini-batches over arrays that share their first extent. The order of epoch e depends on (seed,
/// e) alone, so that a resumed run gets the same batches as an uninterrupted one.
///
///   Batches batches({x, y}, {.batch_size = 64});
///   for (int epoch = 0; epoch < 10; ++epoch)
///     for (int64_t i = 0; i < batches.count(); ++i) session.step(batches.get(epoch, i));
class Batches {
 public:
  /// Throws ShapeError if first extents differ or if BatchOptions::rows has an index out of range,
  /// DataError if there are no rows.
  Batches(std::vector<Tensor> arrays, BatchOptions options);

  int64_t row_count() const { return rows_; }
  int64_t count() const;  ///< batches per epoch
  /// One tensor per array. Throws DataError unless `batch` is below count().
  std::vector<Tensor> get(int64_t epoch, int64_t batch);

 private:
  void order_for(int64_t epoch);

  std::vector<Tensor> arrays_;
  BatchOptions options_;
  int64_t rows_ = 0;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace steep
