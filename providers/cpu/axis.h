// An array seen as [outer, extent, inner] around one of its axes.
#pragma once

#include "steep/tensor.h"

namespace steep::cpu {

struct AxisSplit {
  int64_t outer = 1;
  int64_t extent = 1;
  int64_t inner = 1;
};

/// Splits around [first, last). REQUIRES: 0 <= first <= last <= rank.
inline AxisSplit split_around(const Dims& dims, int64_t first, int64_t last) {
  AxisSplit split;
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    (i < first ? split.outer : i < last ? split.extent : split.inner) *= dims[i];
  }
  return split;
}

/// `axis` counted from the front; -1 when it is out of range.
inline int64_t front_axis(int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) return -1;
  return axis < 0 ? axis + rank : axis;
}

}  // namespace steep::cpu
