// A cache with `update` written along `axis` from write_indices[b] on: ScatterElements
#include "ops/positions.h"

namespace steep {
namespace {

std::vector<Value> tensor_scatter_decompose(Node n) {
  Value cache = n.input(0), update = n.input(1), first = n.input(2);
  const int64_t rank = cache.rank();
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), rank);
  Value index = along_axis(positions(extent_of(update, axis)), axis, rank);
  if (first) index = index + along_axis(cast(first, DType::i64), 0, rank);
  if (text_of(n, "mode") == "circular") index = apply("Mod", {index, extent_of(cache, axis)});
  return {apply("ScatterElements", {cache, expand_like(index, update), update}, {{"axis", axis}})};
}

}  // namespace

extern const OpDef kTensorScatter = {.name = "TensorScatter",
                                     .attributes = {{"axis", -2}, {"mode", "linear"}},
                                     .ranks = "1+ = 1",
                                     .decompose = tensor_scatter_decompose};

}  // namespace steep
