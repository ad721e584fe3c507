// 1 at the first largest element along `axis`, 0 elsewhere
#include "ops/positions.h"

namespace steep {
namespace {

std::vector<Value> hardmax_decompose(Node n) {
  Value x = n.input(0);
  const int64_t axis = normal_axis(n, n.attrs().integer("axis", -1), x.rank());
  Value first = apply("ArgMax", {x}, {{"axis", axis}, {"keepdims", int64_t{1}}});
  Value index = along_axis(positions(extent_of(x, axis)), axis, x.rank());
  return {cast_like(equal(index, first), x)};
}

}  // namespace

extern const OpDef kHardmax = {
    .name = "Hardmax", .stops_gradient = true, .decompose = hardmax_decompose};

}  // namespace steep
