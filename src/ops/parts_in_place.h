// For operators whose results are views of parts of their operand.
#pragma once

#include "ir/graph.h"

namespace steep {

/// The bytes of one index of x along `axis`, when parts of x along that axis are contiguous (all
/// extents before the axis are 1). Otherwise nothing. REQUIRES: concrete types.
std::optional<int64_t> contiguous_bytes(Value x, int64_t axis);

}  // namespace steep
