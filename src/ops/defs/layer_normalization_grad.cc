// steep.LayerNormalizationGrad(dy, x, scale, mean, inv_std){axis} → dx, dscale, dbias. The dtype of
// dy may be narrower than that of x.
#include "ops/build.h"
#include "ops/defs/layer_normalization.h"

namespace steep {
namespace {

std::vector<Type> layer_normalization_grad_infer(Node n) {
  Type x = n.input(1).type(), scale = n.input(2).type();
  if (x.shape) {
    const auto first = normal_axis(n, integer_of(n, "axis"), n.input(1).rank());
    scale.shape = Shape(x.shape->begin() + first, x.shape->end());
  }
  return {x, scale, scale};
}

std::vector<Value> layer_normalization_grad_decompose(Node n) {
  Value x = n.input(1), dy = cast_like(n.input(0), x), scale = n.input(2);
  Value m = cast_like(n.input(3), x), inv = cast_like(n.input(4), x);
  const auto [lead_axes, normalized] = norm_axes(n, x);
  Value unit = (x - m) * inv;
  Value d = dy * scale;
  Value dx = inv * (d - mean(d, normalized, true) - unit * mean(d * unit, normalized, true));
  Value dscale = dy * unit;
  return {dx, lead_axes.empty() ? dscale : sum(dscale, lead_axes, false),
          lead_axes.empty() ? dy : sum(dy, lead_axes, false)};
}

}  // namespace

extern const OpDef kSteepLayerNormalizationGrad = {.name = "steep.LayerNormalizationGrad",
                                                   .attributes = {{"axis", -1}},
                                                   .infer = layer_normalization_grad_infer,
                                                   .decompose = layer_normalization_grad_decompose};

}  // namespace steep
