// Shape, Size: extents as int64. The data of x is not read.
#include "ops/op_def.h"
#include "ops/shape_arithmetic.h"

namespace steep {

extern const OpDef kShape = {.name = "Shape",
                             .attributes = {{"start", 0}},
                             .stops_gradient = true,
                             .dataless = true,
                             .elements = elements::shape};
extern const OpDef kSize = {
    .name = "Size", .stops_gradient = true, .dataless = true, .elements = elements::size};

}  // namespace steep
