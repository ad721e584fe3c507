// y = on where the class equals the index, off elsewhere; values = [off, on]
#include "ops/build.h"

namespace steep {
namespace {

Grads one_hot_vjp(Node n, const Grads& dy) {
  Value bit = ints(n.graph(), {0, 1});
  Value mask = cast_like(apply("OneHot", {n.input(0), n.input(1), bit}, n.attrs()), dy[0]);
  Value on = sum(dy[0] * mask, {}, false);
  Value off = sum(dy[0], {}, false) - on;
  Value values = concat({unsqueeze(off, {0}), unsqueeze(on, {0})}, 0);
  return {Value(), Value(), values};
}

}  // namespace

extern const OpDef kOneHot = {.name = "OneHot",
                              .attributes = {{"axis", -1}},
                              .ranks = ". e 1",
                              .sizes = {{1, 0}},
                              .settings = {2},
                              .vjp = one_hot_vjp};

}  // namespace steep
