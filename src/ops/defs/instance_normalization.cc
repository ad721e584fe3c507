// InstanceNormalization(x[N, C, ...], scale[C], bias[C]){epsilon}: normalises each plane of each
// batch element by its own statistics. Ulyanov et al. 2016. Computed as batch normalisation of N C
// channels.
#include "ops/defs/batch_norm.h"

namespace steep {
namespace {

std::vector<Value> instance_normalization_decompose(Node n) {
  Value x = n.input(0);
  Value rows = unsqueeze(apply("Flatten", {x}, {{"axis", int64_t{2}}}), {0});
  Value planes = apply("Shape", {x}, {{"start", int64_t{0}}, {"end", int64_t{2}}});
  auto spread = [&](Value v) { return reshape(apply("Expand", {v, planes}), {-1}); };
  Value y = batch_norm(rows, spread(n.input(1)), spread(n.input(2)), real_of(n, "epsilon")).y;
  return {reshape_like(y, x)};
}

}  // namespace

extern const OpDef kInstanceNormalization = {.name = "InstanceNormalization",
                                             .attributes = {kNormEpsilon},
                                             .ranks = "2+ 1 1",
                                             .decompose = instance_normalization_decompose};

}  // namespace steep
