// Shape, Size: extents as int64. The values of x play no part.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kShape = {.name = "Shape", .stops_gradient = true};
extern const OpDef kSize = {.name = "Size", .stops_gradient = true};

}  // namespace steep
