#include "flow/rows.h"

#include <algorithm>
#include <array>

#include "flow/rules.h"
#include "ops/op_def.h"

namespace steep {
namespace {

// For so few rows a separate plan would cost more than it saves.
constexpr int64_t kFewRows = 64;

// In sixteenths of the rows. Between a quarter and all of them, at most 1.5 times the rows that
// count are computed.
constexpr std::array<int64_t, 8> kParts = {1, 2, 3, 4, 6, 8, 12, 16};
// Smaller steps where most rows count.
constexpr std::array<int64_t, 8> kEvenParts = {2, 4, 6, 8, 10, 12, 14, 16};

template <typename Label>
Tensor find_rows(std::span<const Label> labels, int64_t ignore_index, bool even) {
  const auto rows = static_cast<int64_t>(labels.size());
  const auto ignored = [&](Label label) { return int64_t{label} == ignore_index; };
  const int64_t least = rows - std::count_if(labels.begin(), labels.end(), ignored);
  int64_t others = computed_rows(least, rows, even) - least;
  Tensor result = Tensor::empty(DType::i64, {least + others});
  int64_t* next = result.data<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    if (ignored(labels[static_cast<size_t>(row)]) && --others < 0) continue;
    *next++ = row;
  }
  return result;
}

}  // namespace

int64_t computed_rows(int64_t least, int64_t rows, bool even) {
  if (rows <= kFewRows) return rows;
  for (const int64_t part : even ? kEvenParts : kParts) {
    const int64_t some = (rows * part + 15) / 16;
    if (some >= least) return some;
  }
  return rows;
}

Tensor counted_rows(const Tensor& labels, int64_t ignore_index, bool even) {
  const auto size = static_cast<size_t>(labels.size());
  return labels.dtype() == DType::i32
             ? find_rows(std::span(labels.data<int32_t>(), size), ignore_index, even)
             : find_rows(std::span(labels.data<int64_t>(), size), ignore_index, even);
}

std::vector<Datum> run_counted_rows(const DynamicCall& call) {
  return {counted_rows(call.tensor(0), integer_of(call.node, "ignore_index"),
                       integer_of(call.node, "even") != 0)};
}

}  // namespace steep
