// yᵢ = start + i delta. Its extent follows from the inputs' values, so that these cannot be
// trained.
#include "ops/op_def.h"
#include "ops/shape_arithmetic.h"

namespace steep {

extern const OpDef kRange = {.name = "Range",
                             .attributes = {{"stash_type", 1}},
                             .stops_gradient = true,
                             .elements = elements::range};

}  // namespace steep
