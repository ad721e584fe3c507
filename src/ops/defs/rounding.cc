// Step functions: the derivative is zero wherever it exists.
#include "ops/op_def.h"

namespace steep {

extern const OpDef kSign = {.name = "Sign", .elementwise = true, .stops_gradient = true};
extern const OpDef kFloor = {.name = "Floor", .elementwise = true, .stops_gradient = true};
extern const OpDef kCeil = {.name = "Ceil", .elementwise = true, .stops_gradient = true};
extern const OpDef kRound = {.name = "Round", .elementwise = true, .stops_gradient = true};

}  // namespace steep
