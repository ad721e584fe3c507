// Positions of extreme values: piecewise constant.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kArgMax = {.name = "ArgMax", .stops_gradient = true};
extern const OpDef kArgMin = {.name = "ArgMin", .stops_gradient = true};

}  // namespace steep
