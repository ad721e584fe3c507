// Which rows of a loss count.
#pragma once

#include <cstdint>
#include <string_view>

#include "steep/tensor.h"

namespace steep {

/// Whose results are counted_rows(): the engine computes it, no kernel.
inline constexpr std::string_view kCountedRows = "steep.CountedRows";

/// How many rows are computed where `counted` of `rows` count: one of at most 8 numbers for given
/// `rows`, so that there are few plans; not less than `counted`, not more than `rows`. The numbers
/// lie close where few count, or, `even`, everywhere alike.
int64_t computed_rows(int64_t counted, int64_t rows, bool even = false);

/// int64[p]: places of labels in row-major order, ascending and distinct; of all that are not
/// `ignore_index`, and of as many others as computed_rows() asks for, from the front.
/// REQUIRES: labels of int32 or int64.
Tensor counted_rows(const Tensor& labels, int64_t ignore_index, bool even = false);

}  // namespace steep
