// steep.BatchNorm(x, scale, bias){epsilon} → y, mean, variance:
// y = (x - mean) scale / sqrt(variance + epsilon) + bias, with the statistics of each channel
// (axis 1) over all other axes. The variance is the population's.
#include "ops/defs/batch_norm.h"

#include "ops/defs/reduce.h"
#include "ops/steep_types.h"

namespace steep {

BatchNorm batch_norm(Value x, Value scale, Value bias, double epsilon) {
  const auto results =
      apply_n("steep.BatchNorm", std::vector{x, scale, bias}, 3, {{"epsilon", epsilon}});
  return {results[0], results[1], results[2]};
}

Value running_statistic(Value before, Value now, Value x, double momentum) {
  Value after = before * momentum + cast_like(now, before) * (1 - momentum);
  return where(equal(extent_product(x, axes_of_statistics(x)), 0), before, after);
}

Value averaged_variance(Node n, Value variance, Value x) {
  if (integer_of(n, kSampleVariance) == 0) return variance;
  const Value count = extent_product(x, axes_of_statistics(x));
  return variance * count / (count - 1.0);
}

Value per_channel(Value v, Value x) {
  if (x.rank() <= 2) return v;
  Ints axes;
  for (int64_t i = 1; i + 1 < x.rank(); ++i) axes.push_back(i);
  return unsqueeze(v, axes);
}

Ints axes_of_statistics(Value x) {
  Ints axes;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != 1) axes.push_back(i);
  }
  return axes;
}

namespace {

Grads batch_norm_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), mean = n.output(1), variance = n.output(2);
  Grads dx(3);
  if (dy[0]) {
    dx = apply_n("steep.BatchNormGrad", std::vector{dy[0], x, n.input(1), mean, variance}, 3,
                 n.attrs());
  } else {
    dx[0] = zeros_like(x);
  }
  // The statistics have gradients too: this op's own gradient reads them, so second derivatives
  // need those.
  Value count = extent_product(x, axes_of_statistics(x));
  if (dy.size() > 1 && dy[1]) dx[0] = dx[0] + per_channel(dy[1] / count, x);
  if (dy.size() > 2 && dy[2]) {
    dx[0] = dx[0] + per_channel(2.0 * dy[2] / count, x) * (x - per_channel(mean, x));
  }
  return dx;
}

std::vector<Type> batch_norm_infer(Node n) {
  const Type& x = n.input(0).type();
  if (x.shape && x.shape->size() < 2) {
    throw_shape_error(n, "A normalisation needs a batch and a channel axis.",
                      "at least 2 dimensions", to_string(x));
  }
  Type channels{x.dtype, {}};
  if (x.shape) channels.shape = Shape{(*x.shape)[1]};
  return {x, channels, channels};
}

std::vector<Value> batch_norm_decompose(Node n) {
  Value x = n.input(0);
  const Ints axes = axes_of_statistics(x);
  Value average = mean(x, axes, false);
  Value distance = x - per_channel(average, x);
  Value variance = mean(distance * distance, axes, false);
  Value factor = n.input(1) / sqrt(variance + real_of(n, "epsilon"));
  return {distance * per_channel(factor, x) + per_channel(n.input(2), x), average, variance};
}

std::vector<Type> batch_norm_grad_infer(Node n) {
  return {n.input(1).type(), n.input(2).type(), n.input(2).type()};
}

std::vector<Value> batch_norm_grad_decompose(Node n) {
  Value dy = n.input(0), x = n.input(1), scale = n.input(2);
  const Ints axes = axes_of_statistics(x);
  Value inv = 1.0 / sqrt(n.input(4) + real_of(n, "epsilon"));
  Value unit = (x - per_channel(n.input(3), x)) * per_channel(inv, x);
  Value centred = dy - per_channel(mean(dy, axes, false), x) -
                  unit * per_channel(mean(dy * unit, axes, false), x);
  return {centred * per_channel(scale * inv, x), sum(dy * unit, axes, false), sum(dy, axes, false)};
}

}  // namespace

extern const OpDef kSteepBatchNorm = {.name = "steep.BatchNorm",
                                      .attributes = {kNormEpsilon},
                                      .vjp = batch_norm_vjp,
                                      .infer = batch_norm_infer,
                                      .decompose = batch_norm_decompose};
/// steep.BatchNormGrad(dy, x, scale, mean, variance){epsilon} → dx, dscale, dbias.
extern const OpDef kSteepBatchNormGrad = {.name = "steep.BatchNormGrad",
                                          .attributes = {kNormEpsilon},
                                          .infer = batch_norm_grad_infer,
                                          .decompose = batch_norm_grad_decompose};

}  // namespace steep
