// LpNormalization(x){axis, p}: x divided by its norm along the axis; 0 where that is 0
#include "ops/build.h"

namespace steep {
namespace {

std::vector<Value> lp_normalization_decompose(Node n) {
  Value x = n.input(0);
  const char* op = n.attrs().integer("p", 2) == 1 ? "ReduceL1" : "ReduceL2";
  Value norm = apply(op, {x, ints(n.graph(), {n.attrs().integer("axis", -1)})});
  return {x / where(equal(norm, 0), 1, norm)};
}

}  // namespace

extern const OpDef kLpNormalization = {.name = "LpNormalization",
                                       .decompose = lp_normalization_decompose};

}  // namespace steep
