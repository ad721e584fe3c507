// GroupNormalization(x[N, C, ...], scale[C], bias[C]){num_groups, epsilon}: normalises the channels
// of a group by their common statistics. Wu and He 2018. Computed as batch normalisation of N
// num_groups channels, then scale and bias.
#include "ops/defs/batch_norm.h"
#include "ops/positions.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Value> group_normalization_decompose(Node n) {
  Value x = n.input(0);
  Graph& g = n.graph();
  Value groups = ints(g, {integer_of(n, "num_groups")});
  Value shape = shape_of(x);
  Value count = part(shape, 0) * groups;
  Value size = apply("ReduceProd", {part(shape, 1, x.rank())});
  Value rows = reshape(x, concat({ints(g, {1}), count, size / groups}, 0));
  auto spread = [&](double v) { return apply("Expand", {scalar(g, v, x.dtype()), count}); };
  Value unit = batch_norm(rows, spread(1), spread(0), real_of(n, "epsilon")).y;
  return {reshape_like(unit, x) * per_channel(n.input(1), x) + per_channel(n.input(2), x)};
}

/// ONNX has no type inference here except through the body of a function.
std::vector<Type> group_normalization_infer(Node n) {
  const Type& x = n.input(0).type();
  const int64_t groups = integer_of(n, "num_groups");
  const bool known = x.shape && x.shape->size() > 1 && (*x.shape)[1].known();
  if (groups < 1 || (known && (*x.shape)[1].value() % groups != 0)) {
    throw_shape_error(n, "The channels do not divide into whole groups.",
                      "a multiple of num_groups = " + std::to_string(groups) + ", at least 1",
                      to_string(x));
  }
  return {x};
}

}  // namespace

extern const OpDef kGroupNormalization = {
    .name = "GroupNormalization",
    .attributes = {kNormEpsilon, {"num_groups", 1}, {"stash_type", 1}},
    .ranks = "2+ 1 1",
    .infer = group_normalization_infer,
    .decompose = group_normalization_decompose};

}  // namespace steep
