// yᵢ = start + i delta. Its extent follows from the inputs' values, so that these cannot be
// trained.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kRange = {.name = "Range", .stops_gradient = true};

}  // namespace steep
