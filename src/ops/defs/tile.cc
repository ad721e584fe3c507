// Repeats x along each axis: y has the extents repeats[i] * x[i]
#include "ops/build.h"

namespace steep {
namespace {

Grads tile_vjp(Node n, const Grads& dy) {
  // Reshape dy to (repeats[0], x[0], repeats[1], x[1], …) and sum over the even axes, the copies.
  Value x = n.input(0), repeats = n.input(1);
  Value pairs = concat({unsqueeze(repeats, {1}), unsqueeze(shape_of(x), {1})}, 1);
  Ints copies;
  for (int64_t i = 0; i < x.rank(); ++i) copies.push_back(2 * i);
  if (copies.empty()) return {dy[0]};
  return {reshape_like(sum(reshape(dy[0], reshape(pairs, {2 * x.rank()})), copies, false), x)};
}

}  // namespace

extern const OpDef kTile = {.name = "Tile", .ranks = ". 1", .sizes = {{1, 0}}, .vjp = tile_vjp};

}  // namespace steep
