// LpNormalization(x){axis, p}: x divided by its norm along the axis; 0 where the norm is 0.
#include "ops/build.h"

namespace steep {
namespace {

std::vector<Value> lp_normalization_decompose(Node n) {
  Value x = n.input(0);
  const char* op = integer_of(n, "p") == 1 ? "ReduceL1" : "ReduceL2";
  Value norm = apply(op, {x, ints(n.graph(), {integer_of(n, "axis")})});
  return {x / where(equal(norm, 0), 1, norm)};
}

}  // namespace

extern const OpDef kLpNormalization = {.name = "LpNormalization",
                                       .attributes = {{"axis", -1}, {"p", 2}},
                                       .decompose = lp_normalization_decompose};

}  // namespace steep
