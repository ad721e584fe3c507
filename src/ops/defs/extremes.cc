// Max, Min: y = the extreme of several inputs, broadcast.
#include "ops/defs/extremes.h"

#include "ops/build.h"
#include "ops/defs/variadic.h"
#include "ops/shape_arithmetic.h"

namespace steep {

Grads extreme_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  const int count = n.input_count();
  if (count == 1) return dy;
  Grads attains;
  Value winners;
  for (int i = 0; i < count; ++i) {
    attains.push_back(equal(n.input(i), y));
    Value hit = cast_like(attains.back(), y);
    winners = winners ? winners + hit : hit;
  }
  Value share = dy[0] / apply("Max", {winners, scalar(y.graph(), 1, y.dtype())});
  Value none = apply("Not", {equal(y, y)});
  for (Value& dx : attains) dx = where(apply("Or", {dx, none}), share, 0);
  return attains;
}

extern const OpDef kMax = {.name = "Max",
                           .elementwise = true,
                           .vjp = extreme_vjp,
                           .elements = elements::max,
                           .decompose = few_at_a_time};
extern const OpDef kMin = {.name = "Min",
                           .elementwise = true,
                           .vjp = extreme_vjp,
                           .elements = elements::min,
                           .decompose = few_at_a_time};

}  // namespace steep
