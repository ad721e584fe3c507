// y = min(max(x, low), high). Slope 1 at both ends and 0 at NaN, as in PyTorch; low > high gives
// high.
#include "ops/build.h"

namespace steep {
namespace {

Grads clip_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), low = n.input(1), high = n.input(2);
  Value raised = low ? apply("Max", {x, low}) : x;
  Value above = high ? greater(raised, high) : Value();
  Value below = low ? less(x, low) : Value();
  // The gradient passes where x is below the upper limit and above the lower one; never for NaN.
  Value open = high ? where(less_or_equal(raised, high), dy[0], 0) : dy[0];
  return {low ? where(less_or_equal(low, x), open, 0) : open,
          below ? where(below, open, 0) : Value(), above ? where(above, dy[0], 0) : Value()};
}

}  // namespace

extern const OpDef kClip = {
    .name = "Clip", .ranks = ". s s", .elementwise = true, .settings = {1, 2}, .vjp = clip_vjp};

}  // namespace steep
