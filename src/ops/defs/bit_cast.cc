// The same bits read as another type
#include "ops/op_def.h"

namespace steep {

extern const OpDef kBitCast = {.name = "BitCast", .stops_gradient = true};

}  // namespace steep
