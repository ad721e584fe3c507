// What LayerNormalization and its gradient share.
#pragma once

#include "ir/graph.h"

namespace steep {

struct NormAxes {
  Ints kept;        ///< the axes before n's `axis`
  Ints normalized;  ///< those from it on
};

/// Axes of `x` as n's attribute `axis` divides them.
NormAxes norm_axes(Node n, Value x);

}  // namespace steep
