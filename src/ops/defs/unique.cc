// The distinct elements (or slices along `axis`) and their indices. As in PyTorch, no gradient
// passes.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kUnique = {
    .name = "Unique", .attributes = {{"sorted", 1}}, .stops_gradient = true, .dynamic = true};

}  // namespace steep
