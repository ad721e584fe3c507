// y = a + b
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads add_vjp(Node, const Grads& dy) { return {dy[0], dy[0]}; }

Value add_simplify(Node n) { return beside_neutral(n, -0.0, true); }

}  // namespace

extern const OpDef kAdd = {.name = "Add",
                           .elementwise = true,
                           .vjp = add_vjp,
                           .elements = elements::add,
                           .simplify = add_simplify};

}  // namespace steep
