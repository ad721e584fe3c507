// y = x[.., indices, ..] along `axis`
#include "ops/build.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads gather_vjp(Node n, const Grads& dy) {
  return {apply("steep.GatherGrad", {dy[0], n.input(1), shape_of(n.input(0))},
                {{"axis", integer_of(n, "axis")}})};
}

}  // namespace

extern const OpDef kGather = {.name = "Gather",
                              .attributes = {{"axis", 0}},
                              .reads_part = true,
                              .vjp = gather_vjp,
                              .elements = elements::gather};

}  // namespace steep
