// GroupNormalization(x[N, C, ...], scale[C], bias[C]){num_groups, epsilon}: the channels of a group
// by their common statistics. Wu and He 2018. Batch normalisation of N num_groups channels, then
// scale and bias.
#include "ops/batch_norm.h"

namespace steep {
namespace {

std::vector<Value> group_normalization_decompose(Node n) {
  Value x = n.input(0);
  Graph& g = n.graph();
  Value groups = reshape(x, {0, n.attrs().integer("num_groups", 1), -1});
  Value rows = apply("Flatten", {groups}, {{"axis", int64_t{2}}});
  Value count = apply("Shape", {rows}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  auto spread = [&](double v) { return apply("Expand", {scalar(g, v, x.dtype()), count}); };
  Value unit =
      batch_norm(unsqueeze(rows, {0}), spread(1), spread(0), n.attrs().real("epsilon", 1e-5)).y;
  return {reshape_like(unit, x) * per_channel(n.input(1), x) + per_channel(n.input(2), x)};
}

/// ONNX leaves the types to the body of a function.
std::vector<Type> group_normalization_infer(Node n) { return {n.input(0).type()}; }

}  // namespace

extern const OpDef kGroupNormalization = {.name = "GroupNormalization",
                                          .infer = group_normalization_infer,
                                          .decompose = group_normalization_decompose};

}  // namespace steep
