// steep.SliceGrad(dy, shape, starts, ends, axes?, steps?): zeros of `shape` with dy at the slice.
#include "ops/build.h"
#include "ops/positions.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

/// Slice(x) with n's starts, ends, axes and steps.
Value slice_alike(Node n, Value x) {
  return apply("Slice", {x, n.input(2), n.input(3), n.input(4), n.input(5)});
}

Grads slice_grad_vjp(Node n, const Grads& dy) { return {slice_alike(n, dy[0])}; }

std::vector<Type> slice_grad_infer(Node n) { return {{n.input(0).dtype(), shape_in(n.input(1))}}; }

/// Slices the flat indices of the elements, then scatters dy to these indices.
std::vector<Value> slice_grad_decompose(Node n) {
  Graph& g = n.graph();
  Value dy = n.input(0), shape = n.input(1);
  Value size = apply("ReduceProd", {shape}, {{"keepdims", int64_t{0}}});
  Value places = reshape(slice_alike(n, reshape(positions(size), shape)), {-1});
  Value zeros = apply("Expand", {scalar(g, 0, dy.dtype()), as_vector(size)});
  return {reshape(apply("ScatterElements", {zeros, places, reshape(dy, {-1})}), shape)};
}

}  // namespace

extern const OpDef kSteepSliceGrad = {.name = "steep.SliceGrad",
                                      .reads_from = 2,
                                      .vjp = slice_grad_vjp,
                                      .infer = slice_grad_infer,
                                      .decompose = slice_grad_decompose};

}  // namespace steep
