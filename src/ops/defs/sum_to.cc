// steep.SumTo(x, shape){dtype}: sum over the axes along which `shape` would be broadcast to x's
// shape. `dtype` is the type of the result, by default that of x.
#include "ops/build.h"
#include "ops/simplify.h"
#include "ops/steep_types.h"

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
      throw_shape_error(n, "A sum over broadcast axes cannot give the requested shape.",
                        to_string(to), to_string(x.type()));
    }
  }
  return {{result_dtype(n, x.dtype()), std::move(to)}};
}

/// Splits each extent into (from / to) × to and sums over the quotients. This needs no known axes,
/// so it works for unknown extents, which are either equal or reduced to 1.
Value sum_quotients(Value x, Value to, int64_t lead) {
  Graph& g = x.graph();
  const Ints ones(static_cast<size_t>(lead), 1);
  const Value aligned = lead == 0 ? to : concat({ints(g, ones), to}, 0);
  const Value quotients = shape_of(x) / apply("Max", {aligned, ints(g, {1})});  // 0 stays 0
  const Value pairs = concat({unsqueeze(quotients, {1}), unsqueeze(aligned, {1})}, 1);
  Ints axes;
  for (int64_t i = 0; i < x.rank(); ++i) axes.push_back(2 * i);
  return sum(reshape(x, reshape(pairs, {2 * x.rank()})), axes, false);
}

/// REQUIRES: known ranks.
std::vector<Value> sum_to_decompose(Node n) {
  Value x = cast_like(n.input(0), n.output(0));
  const Shape from = x.shape(), to = n.output(0).shape();
  const size_t lead = from.size() - to.size();
  Ints axes;
  for (size_t i = 0; i < from.size(); ++i) {
    const Dim want = i < lead ? Dim(1) : to[i - lead];
    const bool one = want.known() && want.value() == 1;
    if (i < lead || (one && !provably_equal(from[i], want))) {
      axes.push_back(static_cast<int64_t>(i));
    } else if (!want.known() && !provably_equal(from[i], want)) {
      return {reshape(sum_quotients(x, n.input(1), static_cast<int64_t>(lead)), n.input(1))};
    }
  }
  return {reshape(axes.empty() ? x : sum(x, axes, true), n.input(1))};
}

}  // namespace

extern const OpDef kSteepSumTo = {.name = "steep.SumTo",
                                  .vjp = sum_to_vjp,
                                  .infer = sum_to_infer,
                                  .decompose = sum_to_decompose,
                                  .simplify = input_if_same_type};

}  // namespace steep
