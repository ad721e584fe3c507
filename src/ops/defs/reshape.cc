// The same elements under another shape
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Grads reshape_vjp(Node n, const Grads& dy) { return {reshape_like(dy[0], n.input(0))}; }

void reshape_refine(Node n) { refine_rank(n, 0); }

}  // namespace

extern const OpDef kReshape = {.name = "Reshape",
                               .attributes = {{"allowzero", 0}},
                               .ranks = ". 1",
                               .view = true,
                               .vjp = reshape_vjp,
                               .refine = reshape_refine,
                               .elements = elements::same,
                               .simplify = input_if_same_type};

}  // namespace steep
