// LayerNormalization(x, scale, bias?){axis, epsilon} → y, mean, inv_std: y = (x - mean) inv_std
// scale + bias over the axes from `axis` on. Ba et al. 2016. All three outputs are always present.
#include "ops/defs/layer_normalization.h"

#include "ops/defs/reduce.h"

namespace steep {

NormAxes norm_axes(Node n, Value x) {
  NormAxes axes;
  const int64_t first = normal_axis(n, integer_of(n, "axis"), x.rank());
  for (int64_t i = 0; i < x.rank(); ++i) (i < first ? axes.lead : axes.normalized).push_back(i);
  return axes;
}

namespace {

Grads layer_normalization_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), scale = n.input(1), bias = n.input(2);
  Value mean = n.output(1), inv_std = n.output(2);
  const NormAxes axes = norm_axes(n, x);
  if (x.dtype() == DType::f64) {  // ONNX has mean and inv_std in float32
    mean = steep::mean(x, axes.normalized, true);
    Value centred = x - mean;
    Value variance = steep::mean(centred * centred, axes.normalized, true);
    inv_std = 1.0 / sqrt(variance + real_of(n, "epsilon"));
  }
  Grads dx;
  if (dy[0]) {
    const int64_t axis = static_cast<int64_t>(axes.lead.size());
    dx = apply_n("steep.LayerNormalizationGrad", std::vector{dy[0], x, scale, mean, inv_std}, 3,
                 {{"axis", axis}});
    if (!bias) dx.pop_back();
  } else {
    dx = {zeros_like(x)};
  }
  // Mean and inv_std have gradients too: this op's own gradient reads them, so second derivatives
  // need those.
  Value count = extent_product(x, axes.normalized);
  if (dy.size() > 1 && dy[1]) dx[0] = dx[0] + cast_like(dy[1], x) / count;
  if (dy.size() > 2 && dy[2]) {
    Value inv = cast_like(inv_std, x);
    dx[0] = dx[0] - cast_like(dy[2], x) * (inv * inv * inv) / count * (x - cast_like(mean, x));
  }
  return dx;
}

}  // namespace

extern const OpDef kLayerNormalization = {
    .name = "LayerNormalization",
    .attributes = {{"axis", -1}, {"epsilon", 1e-05}, {"stash_type", 1}},
    .vjp = layer_normalization_vjp};

}  // namespace steep
