// Indices of extreme values: piecewise constant.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kArgMax = {
    .name = "ArgMax",
    .attributes = {{"axis", 0}, {"keepdims", 1}, {"select_last_index", 0}},
    .stops_gradient = true};
extern const OpDef kArgMin = {
    .name = "ArgMin",
    .attributes = {{"axis", 0}, {"keepdims", 1}, {"select_last_index", 0}},
    .stops_gradient = true};

}  // namespace steep
