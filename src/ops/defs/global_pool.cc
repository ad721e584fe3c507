// GlobalAveragePool and GlobalMaxPool (x[N, C, ...]): mean and maximum of each plane. The gradient
// of the maximum goes to the first maximal element.
#include "ops/defs/global_pool.h"

#include "ops/positions.h"

namespace steep {

Ints spatial_axes(Value x) {
  Ints axes;
  for (int64_t i = 2; i < x.rank(); ++i) axes.push_back(i);
  return axes;
}

namespace {

std::vector<Value> global_average_pool_decompose(Node n) {
  Value x = n.input(0);
  if (x.rank() == 2) return {x};  // each plane is one element
  return {mean(x, spatial_axes(x), true)};
}

std::vector<Value> global_max_pool_decompose(Node n) {
  Value x = n.input(0);
  Value elements = planes(x);
  Value first = apply("ArgMax", {elements}, {{"axis", int64_t{2}}});
  Value y = apply("GatherElements", {elements, first}, {{"axis", int64_t{2}}});
  Ints shape{0, 0};
  shape.resize(static_cast<size_t>(x.rank()), 1);
  return {reshape(y, shape)};
}

}  // namespace

extern const OpDef kGlobalAveragePool = {
    .name = "GlobalAveragePool", .ranks = "2+", .decompose = global_average_pool_decompose};
extern const OpDef kGlobalMaxPool = {
    .name = "GlobalMaxPool", .ranks = "2+", .decompose = global_max_pool_decompose};

}  // namespace steep
