// Joins the axes before and after `axis`: a matrix
#include "ops/build.h"

namespace steep {
namespace {

Grads flatten_vjp(Node n, const Grads& dy) { return {reshape_like(dy[0], n.input(0))}; }

}  // namespace

extern const OpDef kFlatten = {.name = "Flatten", .view = true, .vjp = flatten_vjp};

}  // namespace steep
