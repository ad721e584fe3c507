// RoiAlign(x[N, C, H, W], rois[K, 4], batch_indices[K]) and MaxRoiPool(x, rois[K, 5]) → y[K, C, h,
// w]: pooling of regions (He et al. 2017; Girshick 2015); steep.RoiAlignGrad(dy, x, rois,
// batch_indices) and steep.MaxRoiPoolGrad(dy, x, rois) → dx. Regions have no gradient, as in
// PyTorch's vision library.
#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

Grads roi_align_vjp(Node n, const Grads& dy) {
  return {apply("steep.RoiAlignGrad", {dy[0], n.input(0), n.input(1), n.input(2)}, n.attrs())};
}

Grads max_roi_pool_vjp(Node n, const Grads& dy) {
  return {apply("steep.MaxRoiPoolGrad", {dy[0], n.input(0), n.input(1)}, n.attrs())};
}

std::vector<Type> roi_grad_infer(Node n) { return {n.input(1).type()}; }

Grads roi_grad_vjp(Node n, const Grads&) {
  throw ModelError({.what = "Second derivatives of region pooling are not supported.",
                    .node = n.name(),
                    .op = n.op(),
                    .expected = "a first derivative",
                    .received = "a second derivative",
                    .remedy = "Freeze what leads to the inputs of this node."});
}

}  // namespace

extern const OpDef kRoiAlign = {.name = "RoiAlign", .vjp = roi_align_vjp};
extern const OpDef kMaxRoiPool = {.name = "MaxRoiPool", .vjp = max_roi_pool_vjp};
extern const OpDef kSteepRoiAlignGrad = {
    .name = "steep.RoiAlignGrad", .vjp = roi_grad_vjp, .infer = roi_grad_infer};
extern const OpDef kSteepMaxRoiPoolGrad = {
    .name = "steep.MaxRoiPoolGrad", .vjp = roi_grad_vjp, .infer = roi_grad_infer};

}  // namespace steep
