// steep.BatchNorm(x, scale, bias){epsilon, activation, low, high} → y, mean, variance:
// y = f((x - mean) scale / sqrt(variance + epsilon) + bias), with the statistics of each channel
// (axis 1) over all other axes. The variance is the population's. The activation f is the identity,
// unless a pass took in the reader of y. The gradient does not read y: it computes the operand of f
// again, from x, which costs less than to read an array, and is exact at bounds.
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

/// What the activation reads.
Value normalised(Node n, Value distance, Value scale, Value bias, Value variance) {
  Value factor = scale / sqrt(variance + real_of(n, "epsilon"));
  return distance * per_channel(factor, distance) + per_channel(bias, distance);
}

Value activated(Node n, Value y) {
  const std::string activation = text_of(n, "activation");
  if (activation.empty()) return y;
  if (activation == "Relu") return apply("Relu", {y});
  Value low = scalar(y.graph(), real_of(n, "low"), y.dtype());
  Value high = scalar(y.graph(), real_of(n, "high"), y.dtype());
  if (activation == "Clip") return apply("Clip", {y, low, high});
  return where(less_or_equal(y, low), low, where(apply("GreaterOrEqual", {y, high}), high, y));
}

/// The gradient of y from that of the activation.
Value before_activation(Node n, Value y, Value dy) {
  if (text_of(n, "activation") == "Relu") return where(less_or_equal(y, 0), 0, dy);
  Value low = scalar(y.graph(), real_of(n, "low"), y.dtype());
  Value high = scalar(y.graph(), real_of(n, "high"), y.dtype());
  if (text_of(n, "activation") == "Clip")
    return where(less_or_equal(low, y), where(less_or_equal(y, high), dy, 0), 0);
  return where(apply("And", {less(y, high), greater(y, low)}), dy, 0);
}

Grads batch_norm_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), mean = n.output(1), variance = n.output(2);
  Grads dx(3);
  if (dy[0]) {
    std::vector<Value> operands{dy[0], x, n.input(1), mean, variance};
    if (!text_of(n, "activation").empty()) operands.push_back(n.input(2));
    dx = apply_n("steep.BatchNormGrad", operands, 3, n.attrs());
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
  Value y = normalised(n, distance, n.input(1), n.input(2), variance);
  return {activated(n, y), average, variance};
}

std::vector<Type> batch_norm_grad_infer(Node n) {
  return {n.input(1).type(), n.input(2).type(), n.input(2).type()};
}

std::vector<Value> batch_norm_grad_decompose(Node n) {
  Value dy = n.input(0), x = n.input(1), scale = n.input(2);
  const Ints axes = axes_of_statistics(x);
  Value distance = x - per_channel(n.input(3), x);
  if (!text_of(n, "activation").empty())
    dy = before_activation(n, normalised(n, distance, scale, n.input(5), n.input(4)), dy);
  Value inv = 1.0 / sqrt(n.input(4) + real_of(n, "epsilon"));
  Value unit = distance * per_channel(inv, x);
  Value centred = dy - per_channel(mean(dy, axes, false), x) -
                  unit * per_channel(mean(dy * unit, axes, false), x);
  return {centred * per_channel(scale * inv, x), sum(dy * unit, axes, false), sum(dy, axes, false)};
}

}  // namespace

extern const OpDef kSteepBatchNorm = {.name = "steep.BatchNorm",
                                      .attributes = {kNormEpsilon, kActivation, kLow, kHigh},
                                      .vjp = batch_norm_vjp,
                                      .infer = batch_norm_infer,
                                      .decompose = batch_norm_decompose};
/// steep.BatchNormGrad(dy, x, scale, mean, variance, bias){epsilon, activation, low, high} → dx,
/// dscale, dbias. The bias is read if there is an activation.
extern const OpDef kSteepBatchNormGrad = {.name = "steep.BatchNormGrad",
                                          .attributes = {kNormEpsilon, kActivation, kLow, kHigh},
                                          .infer = batch_norm_grad_infer,
                                          .decompose = batch_norm_grad_decompose};

}  // namespace steep
