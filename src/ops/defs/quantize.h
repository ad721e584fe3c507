// What quantising operators share.
#pragma once

#include "ops/build.h"

namespace steep {

struct QuantisedRange {
  double low, high;
};

/// The numbers that a quantised type holds: an integer of 16 bits or less, or a narrow float.
QuantisedRange quantised_range(DType dtype);

}  // namespace steep
