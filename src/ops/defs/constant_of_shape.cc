// A tensor of the given extents, filled with one constant.
#include "ops/op_def.h"
#include "ops/shape_arithmetic.h"

namespace steep {

extern const OpDef kConstantOfShape = {.name = "ConstantOfShape",
                                       .ranks = "1",
                                       .stops_gradient = true,
                                       .elements = elements::constant_of_shape};

}  // namespace steep
