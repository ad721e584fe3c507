// y = x[.., indices, ..] along `axis`
#include "ops/build.h"

namespace steep {
namespace {

Grads gather_vjp(Node n, const Grads& dy) {
  return {apply("steep.GatherGrad", {dy[0], n.input(1), shape_of(n.input(0))},
                {{"axis", n.attrs().integer("axis", 0)}})};
}

}  // namespace

extern const OpDef kGather = {.name = "Gather", .vjp = gather_vjp};

}  // namespace steep
