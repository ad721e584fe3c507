// A tensor of the given extents, filled with one constant.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kConstantOfShape = {.name = "ConstantOfShape", .stops_gradient = true};

}  // namespace steep
