// Shared by LayerNormalization and its gradient.
#pragma once

#include "ir/graph.h"

namespace steep {

struct NormAxes {
  Ints lead;        ///< the axes before n's `axis`
  Ints normalized;  ///< the axes from n's `axis` on
};

/// The axes of `x`, divided at n's attribute `axis`.
NormAxes norm_axes(Node n, Value x);

}  // namespace steep
