// GridSample(x[N, C, ...], grid[N, ..., rank]) → y and steep.GridSampleGrad(dy, x, grid) → dx,
// dgrid, with the same attributes. Jaderberg et al. 2015.
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

Grads grid_sample_vjp(Node n, const Grads& dy) {
  return apply_n("steep.GridSampleGrad", std::vector{dy[0], n.input(0), n.input(1)}, 2, n.attrs());
}

std::vector<Type> grid_sample_grad_infer(Node n) { return {n.input(1).type(), n.input(2).type()}; }

Grads grid_sample_grad_vjp(Node n, const Grads&) {
  throw ModelError({.what = "Second derivatives of GridSample are not supported.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = "a first derivative",
                    .received = "a second derivative",
                    .remedy = "Freeze what leads to the inputs of this node."});
}

}  // namespace

extern const OpDef kGridSample = {.name = "GridSample", .vjp = grid_sample_vjp};
extern const OpDef kSteepGridSampleGrad = {
    .name = "steep.GridSampleGrad", .vjp = grid_sample_grad_vjp, .infer = grid_sample_grad_infer};

}  // namespace steep
