// GridSample(x[N, C, ...], grid[N, ..., rank]) → y and steep.GridSampleGrad(dy, x, grid) → dx,
// dgrid, with the same attributes. Jaderberg et al. 2015.
#include "ops/build.h"
#include "ops/parts.h"

namespace steep {
namespace {

const std::initializer_list<Attribute> kGridSampleAttributes = {
    {"align_corners", 0}, {"mode", "linear"}, {"padding_mode", "zeros"}};

Grads grid_sample_vjp(Node n, const Grads& dy) {
  return apply_n("steep.GridSampleGrad", std::vector{dy[0], n.input(0), n.input(1)}, 2, n.attrs());
}

std::vector<Type> grid_sample_grad_infer(Node n) { return {n.input(1).type(), n.input(2).type()}; }

std::vector<Value> gradients(Node n, std::span<const Value> inputs, Differentiate differentiate) {
  return gradients_in_parts(
      [&](std::span<const Value> own) { return std::vector{grid_points(n, own[0], own[1])}; },
      inputs.subspan(1), {inputs[0]}, differentiate);
}

Grads grid_sample_grad_vjp(Node n, const Grads& dy, Differentiate differentiate) {
  return differentiate_parts(
      [&](std::span<const Value> own) { return gradients(n, own, differentiate); },
      std::vector{n.input(0), n.input(1), n.input(2)}, dy, differentiate);
}

std::vector<Value> grid_sample_grad_in_parts(Node n, Differentiate differentiate) {
  return gradients(n, std::vector{n.input(0), n.input(1), n.input(2)}, differentiate);
}

}  // namespace

extern const OpDef kGridSample = {.name = "GridSample",
                                  .attributes = kGridSampleAttributes,
                                  .ranks = "3+ =",
                                  .vjp = grid_sample_vjp};
extern const OpDef kSteepGridSampleGrad = {.name = "steep.GridSampleGrad",
                                           .attributes = kGridSampleAttributes,
                                           .vjp = grid_sample_grad_vjp,
                                           .infer = grid_sample_grad_infer,
                                           .export_decomposition = grid_sample_grad_in_parts};

}  // namespace steep
