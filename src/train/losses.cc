#include "train/losses.h"

#include <utility>

#include "ops/build.h"
#include "ops/defs/losses.h"
#include "ops/op_def.h"
#include "ops/wide.h"

namespace steep {
namespace {

/// Losses, their sums and counts are computed in float32 or wider.
Value wide(Value v) { return is_half(v.dtype()) ? cast(v, DType::f32) : v; }

Value absolute(Value v) { return apply("Abs", {v}); }

Value stopped(Value v) { return apply("steep.StopGradient", {v}); }

/// ln v, at least -100. `residue`: the rounding error of v, which the result makes up for.
Value bounded_log(Value v, Value residue = {}) {
  Value y = log(v);
  if (residue) y = y + residue / apply("Max", {v, scalar(v.graph(), 1e-30, v.dtype())});
  return apply("Max", {y, scalar(v.graph(), -100, v.dtype())});
}

/// [.., C] → [rows, C].
Value as_rows(Value scores) {
  if (scores.rank() <= 2) return scores;
  const Dim& classes = scores.shape().back();
  return classes.known() ? reshape(scores, Ints{-1, classes.value()})
                         : apply("Flatten", {scores}, {{"axis", scores.rank() - 1}});
}

Attrs attributes_of(const ClassOptions& options) {
  Attrs attrs{{"reduction", std::string("mean")}};
  if (options.ignore_index) attrs.set("ignore_index", *options.ignore_index);
  return attrs;
}

/// For rows of classes: Σ -weight·log_p over all classes of the rows that count, divided by the
/// same divisor as the mean cross entropy `labelled`.
Value over_all_classes(Value log_p, Value weights, Node labelled) {
  const LabelRows rows = label_rows(labelled, labelled.input(1), labelled.input(2), log_p.dtype());
  Value losses = -sum(weights ? log_p * weights : log_p, {1}, false);
  if (rows.counts) losses = where(rows.counts, losses, 0);
  return rows.weights ? sum(losses, {}, false) / sum(rows.weights, {}, false)
                      : mean(losses, {}, false);
}

}  // namespace

Value mse_loss(Value y, Value target) {
  Value d = wide(y) - wide(target);
  return mean(d * d, {}, false);
}

Value l1_loss(Value y, Value target) { return mean(absolute(wide(y) - wide(target)), {}, false); }

Value huber_loss(Value y, Value target, double delta) {
  Value d = wide(y) - wide(target), a = absolute(d);
  Value near = less_or_equal(a, delta);
  return mean(where(near, d * d * 0.5, (a - 0.5 * delta) * delta), {}, false);
}

Value binary_cross_entropy_with_logits_loss(Value logits, Value target) {
  // max(x, 0) - x·t + log(1 + exp(-|x|)) is equally stable, but its parts have no derivative at x =
  // 0, and a model that starts with zero weights has such logits.
  logits = wide(logits);
  target = wide(target);
  Value positive = apply("Softplus", {-logits}), negative = apply("Softplus", {logits});
  return mean(target * positive + (1.0 - target) * negative, {}, false);
}

Value binary_cross_entropy_loss(Value p, Value target) {
  p = wide(p);
  target = wide(target);
  const Value fixed = stopped(p), rest = 1.0 - fixed;
  const Value losses =
      -(target * bounded_log(fixed) + (1.0 - target) * bounded_log(rest, (1.0 - rest) - fixed));
  // The derivative of the formula above is 0/0 at p = 0 and p = 1.
  const Value spread = apply("Max", {fixed * rest, scalar(p.graph(), 1e-12, p.dtype())});
  const Value slope = stopped((fixed - target) / spread);
  return mean(losses + (p - fixed) * slope, {}, false);
}

ClassLoss softmax_cross_entropy_loss(Value logits, Value labels, const ClassOptions& options) {
  logits = wide(as_rows(logits));
  if (labels.rank() != 1) labels = reshape(labels, Ints{-1});
  const Value weights = options.weights ? cast_like(options.weights, logits) : Value();
  std::vector<Value> operands{logits, labels};
  if (weights) operands.push_back(weights);
  ClassLoss result;
  result.mean = apply_n("steep.SoftmaxCrossEntropy", operands, 3, attributes_of(options))[0];
  result.loss = result.mean;
  if (options.smoothing == 0) return result;
  const Value log_p = apply("LogSoftmax", {logits}, {{"axis", int64_t{-1}}});
  const Value all = over_all_classes(log_p, weights, result.mean.producer());
  const Value classes =
      cast_like(apply("Size", {logits}), logits) / cast_like(apply("Size", {labels}), logits);
  result.loss = result.mean * (1 - options.smoothing) + all * options.smoothing / classes;
  return result;
}

ClassLoss nll_loss(Value log_p, Value labels, const ClassOptions& options) {
  log_p = wide(as_rows(log_p));
  if (labels.rank() != 1) labels = reshape(labels, Ints{-1});
  std::vector<Value> operands{log_p, labels};
  if (options.weights) operands.push_back(cast_like(options.weights, log_p));
  const Value loss = apply("NegativeLogLikelihoodLoss", operands, attributes_of(options));
  return {loss, loss};
}

}  // namespace steep
