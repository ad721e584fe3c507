// y = x in the type of the second input
#include "ops/build.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads cast_like_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  return {is_float(x.dtype()) ? cast_like(dy[0], x) : Value()};
}

}  // namespace

extern const OpDef kCastLike = {.name = "CastLike",
                                .attributes = {{"round_mode", "up"}, {"saturate", 1}},
                                .vjp = cast_like_vjp,
                                .simplify = input_if_same_type};

}  // namespace steep
