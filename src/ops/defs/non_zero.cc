// Indices of the elements that are not zero, int64[rank, count], in row-major order.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kNonZero = {.name = "NonZero", .stops_gradient = true, .dynamic = true};

}  // namespace steep
