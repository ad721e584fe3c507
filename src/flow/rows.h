// Finds the rows that count in a loss.
#pragma once

#include <cstdint>
#include <string_view>

#include "steep/tensor.h"

namespace steep {

/// The operator whose result is counted_rows(). The engine computes it, without a kernel.
inline constexpr std::string_view kCountedRows = "steep.CountedRows";

/// How many rows are computed if `least` of `rows` rows count: at least `least` and at most
/// `rows`. For given `rows` it is one of at most 8 numbers, so that there are few plans. The
/// numbers are closest together where few rows count, or evenly spaced with `even`.
int64_t computed_rows(int64_t least, int64_t rows, bool even = false);

/// int64[p]: the indices of labels in row-major order, ascending and distinct. They are the indices
/// of all labels other than `ignore_index`, and of the first ignored ones, as many as
/// computed_rows() adds. REQUIRES: labels of int32 or int64.
Tensor counted_rows(const Tensor& labels, int64_t ignore_index, bool even = false);

}  // namespace steep
