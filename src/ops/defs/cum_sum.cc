// Running sums along one axis; the gradient is a running sum in the other direction.
#include "ops/build.h"

namespace steep {
namespace {

Grads cum_sum_vjp(Node n, const Grads& dy) {
  Attrs other_way = n.attrs();
  other_way.set("reverse", int64_t{integer_of(n, "reverse") == 0});
  return {apply("CumSum", {dy[0], n.input(1)}, other_way)};
}

}  // namespace

extern const OpDef kCumSum = {.name = "CumSum",
                              .attributes = {{"exclusive", 0}, {"reverse", 0}},
                              .ranks = ". e",
                              .vjp = cum_sum_vjp};

}  // namespace steep
