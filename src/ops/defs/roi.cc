// RoiAlign(x[N, C, H, W], rois[K, 4], batch_indices[K]) and MaxRoiPool(x, rois[K, 5]) → y[K, C, h,
// w]: pooling of regions (He et al. 2017; Girshick 2015); steep.RoiAlignGrad(dy, x, rois,
// batch_indices) and steep.MaxRoiPoolGrad(dy, x, rois) → dx. Regions have no gradient, as in
// PyTorch's vision library.
#include "ops/build.h"
#include "ops/parts.h"

namespace steep {
namespace {

const std::initializer_list<Attribute> kRoiAlignAttributes = {
    {"coordinate_transformation_mode", "half_pixel"},
    {"mode", "avg"},
    {"output_height", 1},
    {"output_width", 1},
    {"sampling_ratio", 0},
    {"spatial_scale", 1.0}};

Grads roi_align_vjp(Node n, const Grads& dy) {
  return {apply("steep.RoiAlignGrad", {dy[0], n.input(0), n.input(1), n.input(2)}, n.attrs())};
}

Grads max_roi_pool_vjp(Node n, const Grads& dy) {
  return {apply("steep.MaxRoiPoolGrad", {dy[0], n.input(0), n.input(1)}, n.attrs())};
}

std::vector<Type> roi_grad_infer(Node n) { return {n.input(1).type()}; }

/// Only x is differentiated: regions have no gradient.
std::vector<Value> align_gradient(Node n, Value dy, Value x, Differentiate differentiate) {
  return gradients_in_parts(
      [&](std::span<const Value> own) {
        return std::vector{region_points(n, own[0], n.input(2), n.input(3))};
      },
      std::vector{x}, {dy}, differentiate);
}

Grads roi_align_grad_vjp(Node n, const Grads& dy, Differentiate differentiate) {
  return differentiate_parts(
      [&](std::span<const Value> own) { return align_gradient(n, own[0], own[1], differentiate); },
      std::vector{n.input(0), n.input(1)}, dy, differentiate);
}

std::vector<Value> pool_gradient(Node n, Value dy, Value x, Differentiate differentiate) {
  return gradients_in_parts(
      [&](std::span<const Value> own) { return std::vector{region_maxima(n, own[0], n.input(2))}; },
      std::vector{x}, {dy}, differentiate);
}

Grads max_roi_pool_grad_vjp(Node n, const Grads& dy, Differentiate differentiate) {
  return differentiate_parts(
      [&](std::span<const Value> own) { return pool_gradient(n, own[0], own[1], differentiate); },
      std::vector{n.input(0), n.input(1)}, dy, differentiate);
}

std::vector<Value> roi_align_grad_in_parts(Node n, Differentiate differentiate) {
  return align_gradient(n, n.input(0), n.input(1), differentiate);
}

std::vector<Value> max_roi_pool_grad_in_parts(Node n, Differentiate differentiate) {
  return pool_gradient(n, n.input(0), n.input(1), differentiate);
}

}  // namespace

extern const OpDef kRoiAlign = {
    .name = "RoiAlign", .attributes = kRoiAlignAttributes, .ranks = "4 2 1", .vjp = roi_align_vjp};
extern const OpDef kMaxRoiPool = {.name = "MaxRoiPool",
                                  .attributes = {{"spatial_scale", 1.0}},
                                  .ranks = "4 2",
                                  .vjp = max_roi_pool_vjp};
extern const OpDef kSteepRoiAlignGrad = {.name = "steep.RoiAlignGrad",
                                         .attributes = kRoiAlignAttributes,
                                         .vjp = roi_align_grad_vjp,
                                         .infer = roi_grad_infer,
                                         .export_decomposition = roi_align_grad_in_parts};
extern const OpDef kSteepMaxRoiPoolGrad = {.name = "steep.MaxRoiPoolGrad",
                                           .attributes = {{"spatial_scale", 1.0}},
                                           .vjp = max_roi_pool_grad_vjp,
                                           .infer = roi_grad_infer,
                                           .export_decomposition = max_roi_pool_grad_in_parts};

}  // namespace steep
