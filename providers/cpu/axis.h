// An array seen as [outer, extent, inner] around one of its axes.
#pragma once

#include <algorithm>

#include "providers/cpu/parallel.h"
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

/// Calls line(first element, step to the next, count) for each line along an axis, in parallel;
/// from the end with `reverse`. Does nothing for lines without elements.
template <typename F>
void for_lines(const AxisSplit& s, bool reverse, F&& line) {
  if (s.extent == 0) return;
  const int64_t step = reverse ? -s.inner : s.inner;
  parallel_for(s.outer * s.inner, grain_of(32768, s.extent), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t base = i / s.inner * s.extent * s.inner + i % s.inner;
      line(reverse ? base + (s.extent - 1) * s.inner : base, step, s.extent);
    }
  });
}

}  // namespace steep::cpu
