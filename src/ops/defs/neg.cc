// y = -x
#include "ops/build.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads neg_vjp(Node, const Grads& dy) { return {-dy[0]}; }

}  // namespace

extern const OpDef kNeg = {
    .name = "Neg", .elementwise = true, .vjp = neg_vjp, .elements = elements::negate};

}  // namespace steep
