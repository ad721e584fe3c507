// y = a / b
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads div_vjp(Node n, const Grads& dy) {
  Value b = n.input(1), y = n.output(0);
  Value da = dy[0] / b;
  return {da, -(da * y)};
}

Value div_simplify(Node n) { return beside_neutral(n, 1, false); }

}  // namespace

extern const OpDef kDiv = {.name = "Div",
                           .elementwise = true,
                           .vjp = div_vjp,
                           .elements = elements::div,
                           .simplify = div_simplify};

}  // namespace steep
