#include "cli/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/counted.h"
#include "steep/error.h"

namespace steep::cli {
namespace {

/// The rows of the arrays that the feed uses, in order.
Tensor row_numbers(const Feed& feed) {
  if (!feed.row_numbers.empty())
    return Tensor::from(feed.row_numbers, {static_cast<int64_t>(feed.row_numbers.size())});
  std::vector<int64_t> numbers(static_cast<size_t>(feed.rows()));
  std::iota(numbers.begin(), numbers.end(), int64_t{0});
  return Tensor::from(numbers, {feed.rows()});
}

}  // namespace

Shares::Shares(const Feed& feed, const BatchOptions& options, int rank, int size)
    : feed_(feed),
      batch_size_(options.batch_size),
      rank_(rank),
      size_(size),
      batches_(feed, options),
      row_numbers_({row_numbers(feed)}, options) {}

std::vector<int64_t> Shares::numbers(int64_t epoch, int64_t batch) {
  const Tensor rows = row_numbers_.get(epoch, batch)[0];
  return {rows.data<int64_t>(), rows.data<int64_t>() + rows.size()};
}

std::pair<int64_t, int64_t> Shares::range(int64_t rows) const {
  const int64_t least = rows / size_, more = rows % size_;
  const int64_t begin = rank_ * least + std::min<int64_t>(rank_, more);
  return {begin, begin + least + (rank_ < more ? 1 : 0)};
}

std::vector<Tensor> Shares::take(const std::vector<int64_t>& numbers) const {
  std::vector<Tensor> result;
  for (const Tensor& array : feed_.arrays) result.push_back(take_rows(array, numbers));
  return feed_.late.read(std::move(result));
}

std::vector<Tensor> Shares::get(int64_t epoch, int64_t batch) {
  if (size_ == 1) return batches_.get(epoch, batch);
  const std::vector<int64_t> all = numbers(epoch, batch);
  const auto [begin, end] = range(static_cast<int64_t>(all.size()));
  return take({all.begin() + begin, all.begin() + end});
}

std::vector<Tensor> Shares::sample(int64_t count) const {
  const auto [begin, end] = range(count);
  return begin == end ? take({}) : first_rows(feed_, end - begin);
}

int64_t Shares::rows_of(int64_t batch) const {
  return std::min(batch_size_, row_count() - batch * batch_size_);
}

Tensor Shares::whole(size_t array, int64_t epoch, int64_t batch) {
  return feed_.late.read(array, take_rows(feed_.arrays.at(array), numbers(epoch, batch)));
}

void require_open_rows(std::span<const TensorInfo> inputs) {
  const int64_t rows = fixed_rows(inputs);
  if (rows == 0) return;
  throw DataError(ErrorParts{
      .what = "The model fixes the number of rows: its batches cannot be divided among processes.",
      .expected = "inputs whose first extent is open",
      .received = "batches of " + counted(rows, "row"),
      .remedy = "Export the model with an open first extent, or train without --parallel."});
}

}  // namespace steep::cli
