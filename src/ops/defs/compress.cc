// The slices along `axis` (without it: the elements) whose condition is true: a Gather at computed
// indices.
#include "ops/build.h"

namespace steep {
namespace {

Grads compress_vjp(Node n, const Grads& dy) {
  const Value x = n.input(0);
  const Value places = squeeze(apply("NonZero", {n.input(1)}), {0});
  if (n.attrs().has("axis")) {
    return {apply("steep.GatherGrad", {dy[0], places, shape_of(x)},
                  {{"axis", n.attrs().integer("axis", 0)}})};
  }
  const Value count = unsqueeze(apply("Size", {x}), {0});
  const Value flat = apply("steep.GatherGrad", {dy[0], places, count}, {{"axis", int64_t{0}}});
  return {reshape_like(flat, x)};
}

}  // namespace

extern const OpDef kCompress = {
    .name = "Compress", .ranks = ". 1", .dynamic = true, .vjp = compress_vjp};

}  // namespace steep
