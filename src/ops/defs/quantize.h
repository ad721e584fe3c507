// Shared by the quantising operators.
#pragma once

#include "ops/build.h"

namespace steep {

struct QuantisedRange {
  double low, high;
};

/// The range of a quantised dtype: an integer of at most 16 bits, or a narrow float.
QuantisedRange quantised_range(DType dtype);

}  // namespace steep
