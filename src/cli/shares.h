// The rows of each batch, divided among the processes of a training.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cli/data.h"
#include "steep/data.h"
#include "steep/steep.h"

namespace steep::cli {

/// As Batches, of which each process has a share: rows that follow each other in the shuffled
/// batch. Shares differ by one row at most, and the first processes have the larger ones; a process
/// has no rows if the batch has fewer than there are processes. Only the rows of the share are
/// read.
class Shares {
 public:
  Shares(const Feed& feed, const BatchOptions& options, int rank, int size);

  int64_t row_count() const { return batches_.row_count(); }
  int64_t count() const { return batches_.count(); }
  /// This process's rows of a batch.
  std::vector<Tensor> get(int64_t epoch, int64_t batch);
  /// The first `rows` rows of the arrays, as those of a batch of so many rows.
  std::vector<Tensor> sample(int64_t rows) const;
  /// Number of rows of a batch, of all processes.
  int64_t rows_of(int64_t batch) const;
  /// All rows of a batch in one of the arrays, which is not of images.
  Tensor whole(size_t array, int64_t epoch, int64_t batch);

 private:
  std::vector<int64_t> numbers(int64_t epoch, int64_t batch);
  /// First and last row of the share of `rows` rows.
  std::pair<int64_t, int64_t> range(int64_t rows) const;
  /// The rows with these numbers, images read.
  std::vector<Tensor> take(const std::vector<int64_t>& numbers) const;

  Feed feed_;
  int64_t batch_size_;
  int rank_, size_;
  FeedBatches batches_;
  Batches row_numbers_;
};

/// Throws DataError if the model fixes the number of rows, so that a batch cannot be divided.
void require_open_rows(std::span<const TensorInfo> inputs);

}  // namespace steep::cli
