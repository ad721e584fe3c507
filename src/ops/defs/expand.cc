// Broadcasts x to a shape. The engine sums over the broadcast axes.
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads expand_vjp(Node, const Grads& dy) { return {dy[0]}; }

void expand_refine(Node n) {
  if (n.input(0).type().shape) refine_rank(n, n.input(0).rank());
}

}  // namespace

extern const OpDef kExpand = {.name = "Expand",
                              .ranks = ". 1",
                              .vjp = expand_vjp,
                              .refine = expand_refine,
                              .elements = elements::expand,
                              .simplify = input_if_same_type};

}  // namespace steep
