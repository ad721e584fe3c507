// Max, Min: y = the extreme of several inputs, broadcast.
#include "ops/extremes.h"

#include "ops/build.h"
#include "ops/variadic.h"

namespace steep {

Grads extreme_vjp(Node n, const Grads& dy) {
  Value y = n.output(0);
  const int count = n.input_count();
  if (count == 1) return dy;
  Grads attains;
  Value winners;
  for (int i = 0; i < count; ++i) {
    Value hit = cast_like(equal(n.input(i), y), y);
    winners = winners ? winners + hit : hit;
    attains.push_back(hit);
  }
  Value share = dy[0] / winners;
  for (Value& dx : attains) dx = share * dx;
  return attains;
}

extern const OpDef kMax = {
    .name = "Max", .elementwise = true, .vjp = extreme_vjp, .decompose = few_at_a_time};
extern const OpDef kMin = {
    .name = "Min", .elementwise = true, .vjp = extreme_vjp, .decompose = few_at_a_time};

}  // namespace steep
