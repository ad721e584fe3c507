// y = a - b
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads sub_vjp(Node, const Grads& dy) { return {dy[0], -dy[0]}; }

Value sub_simplify(Node n) { return beside_neutral(n, 0, false); }

}  // namespace

extern const OpDef kSub = {.name = "Sub",
                           .elementwise = true,
                           .vjp = sub_vjp,
                           .elements = elements::sub,
                           .simplify = sub_simplify};

}  // namespace steep
