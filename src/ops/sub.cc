// y = a - b
#include "ops/build.h"

namespace steep {
namespace {

Grads sub_vjp(Node, const Grads& dy) { return {dy[0], -dy[0]}; }

}  // namespace

extern const OpDef kSub = {.name = "Sub", .elementwise = true, .vjp = sub_vjp};

}  // namespace steep
