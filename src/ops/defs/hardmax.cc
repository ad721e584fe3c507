// Hardmax(x){axis}: 1 at the first largest element of each line, 0 elsewhere. Piecewise constant.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kHardmax = {
    .name = "Hardmax", .attributes = {{"axis", -1}}, .stops_gradient = true};

}  // namespace steep
