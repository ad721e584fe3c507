// y = x[starts:ends:steps] along `axes`
#include "ops/build.h"

namespace steep {
namespace {

Grads slice_vjp(Node n, const Grads& dy) {
  return {apply("steep.SliceGrad",
                {dy[0], shape_of(n.input(0)), n.input(1), n.input(2), n.input(3), n.input(4)})};
}

}  // namespace

extern const OpDef kSlice = {.name = "Slice", .vjp = slice_vjp};

}  // namespace steep
