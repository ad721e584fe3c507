// What operators whose results are parts of their operand share.
#pragma once

#include "ir/graph.h"

namespace steep {

/// Bytes of one index of `axis` of x, where a part of x along that axis is contiguous: all extents
/// before it are 1. Nothing elsewhere. REQUIRES: concrete types.
std::optional<int64_t> contiguous_bytes(Value x, int64_t axis);

}  // namespace steep
