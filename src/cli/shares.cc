#include "cli/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cli/data.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

std::vector<Tensor> row_numbers(const std::vector<Tensor>& arrays) {
  std::vector<int64_t> numbers(static_cast<size_t>(arrays.at(0).dims().at(0)));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  const auto count = static_cast<int64_t>(numbers.size());
  return {Tensor::from(numbers, {count})};
}

}  // namespace

Shares::Shares(std::vector<Tensor> arrays, const BatchOptions& options, int rank, int size)
    : arrays_(std::move(arrays)),
      batch_size_(options.batch_size),
      rank_(rank),
      size_(size),
      batches_(size == 1 ? arrays_ : row_numbers(arrays_), options) {}

std::vector<int64_t> Shares::numbers(int64_t epoch, int64_t batch) {
  const Tensor rows = batches_.get(epoch, batch)[0];
  return {rows.data<int64_t>(), rows.data<int64_t>() + rows.size()};
}

std::pair<int64_t, int64_t> Shares::range(int64_t rows) const {
  const int64_t least = rows / size_, more = rows % size_;
  const int64_t begin = rank_ * least + std::min<int64_t>(rank_, more);
  return {begin, begin + least + (rank_ < more ? 1 : 0)};
}

std::vector<Tensor> Shares::get(int64_t epoch, int64_t batch) {
  if (size_ == 1) return batches_.get(epoch, batch);
  std::vector<int64_t> all = numbers(epoch, batch);
  const auto [begin, end] = range(static_cast<int64_t>(all.size()));
  const std::vector<int64_t> own(all.begin() + begin, all.begin() + end);
  std::vector<Tensor> result;
  for (const Tensor& array : arrays_) result.push_back(take_rows(array, own));
  return result;
}

std::vector<Tensor> Shares::sample(int64_t count) const {
  const auto [begin, end] = range(count);
  std::vector<Tensor> result;
  for (const Tensor& array : arrays_) result.push_back(steep::rows(array, 0, end - begin));
  return result;
}

int64_t Shares::rows_of(int64_t batch) const {
  return std::min(batch_size_, row_count() - batch * batch_size_);
}

Tensor Shares::whole(size_t array, int64_t epoch, int64_t batch) {
  if (size_ == 1) return batches_.get(epoch, batch).at(array);
  return take_rows(arrays_.at(array), numbers(epoch, batch));
}

void require_open_rows(std::span<const TensorInfo> inputs) {
  const int64_t rows = fixed_rows(inputs);
  if (rows == 0) return;
  throw DataError(ErrorParts{
      .what = "The model fixes the number of rows: its batches cannot be divided among processes.",
      .expected = "inputs whose first extent is open",
      .received = fmt::format("batches of {} rows", rows),
      .remedy = "Export the model with an open first extent, or train without --parallel."});
}

}  // namespace steep::cli
