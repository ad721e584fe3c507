// y[i][j] = x[indices[i][j]][j] (axis 0)
#include "ops/build.h"

namespace steep {
namespace {

Grads gather_elements_vjp(Node n, const Grads& dy) {
  Attrs add{{"axis", n.attrs().integer("axis", 0)}, {"reduction", std::string("add")}};
  return {apply("ScatterElements", {zeros_like(n.input(0)), n.input(1), dy[0]}, add)};
}

}  // namespace

extern const OpDef kGatherElements = {.name = "GatherElements", .vjp = gather_elements_vjp};

}  // namespace steep
