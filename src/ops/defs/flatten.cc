// Joins the axes before and after `axis`: a matrix
#include "ops/build.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads flatten_vjp(Node n, const Grads& dy) { return {reshape_like(dy[0], n.input(0))}; }

}  // namespace

extern const OpDef kFlatten = {.name = "Flatten",
                               .attributes = {{"axis", 1}},
                               .view = true,
                               .vjp = flatten_vjp,
                               .simplify = input_if_same_type};

}  // namespace steep
