// steep.SumTo(x, shape){dtype}: sum over the axes along which `shape` would be broadcast to x's
// shape. `dtype` is the type of the result, by default that of x.
#include "ops/build.h"
#include "ops/own_types.h"

namespace steep {
namespace {

Grads sum_to_vjp(Node n, const Grads& dy) {
  return {expand_like(cast_like(dy[0], n.input(0)), n.input(0))};
}

std::vector<Type> sum_to_infer(Node n) {
  Value x = n.input(0);
  std::optional<Shape> to = shape_in(n.input(1));
  if (const auto& from = shape_if_known(x); from && to) {
    bool fits = to->size() <= from->size();
    for (size_t i = 0; fits && i < to->size(); ++i) {
      const Dim& have = (*from)[from->size() - to->size() + i];
      const Dim& want = (*to)[i];
      fits = !have.known() || !want.known() || want.value() == 1 || want.value() == have.value();
    }
    if (!fits) {
      throw_shape_error(n, "A sum over broadcast axes cannot reach the wanted shape.",
                        to_string(to), to_string(x.type()));
    }
  }
  return {{result_dtype(n, x.dtype()), std::move(to)}};
}

/// REQUIRES: known shapes.
std::vector<Value> sum_to_decompose(Node n) {
  Value x = cast_like(n.input(0), n.output(0));
  const Dims from = x.type().dims(), to = n.output(0).type().dims();
  const size_t lead = from.size() - to.size();
  Ints axes;
  for (size_t i = 0; i < from.size(); ++i) {
    if (i < lead || (to[i - lead] == 1 && from[i] != 1)) axes.push_back(static_cast<int64_t>(i));
  }
  return {reshape(axes.empty() ? x : sum(x, axes, true), n.input(1))};
}

}  // namespace

extern const OpDef kSteepSumTo = {
    .name = "steep.SumTo", .vjp = sum_to_vjp, .infer = sum_to_infer, .decompose = sum_to_decompose};

}  // namespace steep
