// Adds axes of extent 1
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads unsqueeze_vjp(Node n, const Grads& dy) { return {reshape_like(dy[0], n.input(0))}; }

}  // namespace

extern const OpDef kUnsqueeze = {.name = "Unsqueeze",
                                 .view = true,
                                 .vjp = unsqueeze_vjp,
                                 .elements = elements::same,
                                 .simplify = input_if_same_type};

}  // namespace steep
