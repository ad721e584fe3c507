// y[i][j] = x[indices[i][j]][j] (axis 0)
#include "ops/build.h"

namespace steep {
namespace {

Grads gather_elements_vjp(Node n, const Grads& dy) {
  Attrs add{{"axis", integer_of(n, "axis")}, {"reduction", std::string("add")}};
  return {apply("ScatterElements", {zeros_like(n.input(0)), n.input(1), dy[0]}, add)};
}

}  // namespace

extern const OpDef kGatherElements = {.name = "GatherElements",
                                      .attributes = {{"axis", 0}},
                                      .ranks = "1+ =",
                                      .reads_part = true,
                                      .vjp = gather_elements_vjp};

}  // namespace steep
