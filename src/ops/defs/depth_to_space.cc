// DepthToSpace and SpaceToDepth (x[N, C, H, W]){blocksize, mode}: moves channels into blocks of
// pixels, and back.
#include "ops/build.h"

namespace steep {
namespace {

/// Extents of x, each as int64[1].
std::vector<Value> extents(Value x) {
  std::vector<Value> parts;
  for (int64_t i = 0; i < x.rank(); ++i) {
    parts.push_back(apply("Shape", {x}, {{"start", i}, {"end", i + 1}}));
  }
  return parts;
}

Value joined(const std::vector<Value>& parts) { return concat(parts, 0); }

std::vector<Value> depth_to_space_decompose(Node n) {
  Value x = n.input(0);
  const int64_t size = integer_of(n, "blocksize");
  const bool rows_first = text_of(n, "mode") == "DCR";
  Value block = ints(n.graph(), {size});
  const auto d = extents(x);
  Value depth = apply("Div", {d[1], ints(n.graph(), {size * size})});
  Value parts = rows_first ? joined({d[0], block, block, depth, d[2], d[3]})
                           : joined({d[0], depth, block, block, d[2], d[3]});
  Value blocks =
      transpose(reshape(x, parts), rows_first ? Ints{0, 3, 4, 1, 5, 2} : Ints{0, 1, 4, 2, 5, 3});
  return {reshape(blocks,
                  joined({d[0], depth, apply("Mul", {d[2], block}), apply("Mul", {d[3], block})}))};
}

std::vector<Value> space_to_depth_decompose(Node n) {
  Value x = n.input(0);
  const int64_t size = integer_of(n, "blocksize");
  const bool rows_first = text_of(n, "mode") == "DCR";
  Value block = ints(n.graph(), {size});
  const auto d = extents(x);
  Value height = apply("Div", {d[2], block}), width = apply("Div", {d[3], block});
  Value blocks = transpose(reshape(x, joined({d[0], d[1], height, block, width, block})),
                           rows_first ? Ints{0, 3, 5, 1, 2, 4} : Ints{0, 1, 3, 5, 2, 4});
  Value depth = apply("Mul", {d[1], ints(n.graph(), {size * size})});
  return {reshape(blocks, joined({d[0], depth, height, width}))};
}

}  // namespace

extern const OpDef kDepthToSpace = {.name = "DepthToSpace",
                                    .attributes = {{"blocksize", 1}, {"mode", "DCR"}},
                                    .ranks = "4",
                                    .decompose = depth_to_space_decompose};
extern const OpDef kSpaceToDepth = {.name = "SpaceToDepth",
                                    .attributes = {{"blocksize", 1}, {"mode", "DCR"}},
                                    .ranks = "4",
                                    .decompose = space_to_depth_decompose};

}  // namespace steep
