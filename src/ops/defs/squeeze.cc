// Drops axes of extent 1
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads squeeze_vjp(Node n, const Grads& dy) { return {reshape_like(dy[0], n.input(0))}; }

}  // namespace

extern const OpDef kSqueeze = {.name = "Squeeze",
                               .view = true,
                               .vjp = squeeze_vjp,
                               .elements = elements::same,
                               .simplify = input_if_same_type};

}  // namespace steep
