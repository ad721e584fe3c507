// The formulas of losses, made of graph operators. Each is PyTorch's loss of that name, with
// PyTorch's gradient. 16-bit floats are computed in float32.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace steep {

/// For y and labels of one shape: the mean over all elements of (y - t)².
Value mse_loss(Value y, Value target);
/// The mean of |y - t|; the derivative at 0 is 0.
Value l1_loss(Value y, Value target);
/// The mean of (y - t)²/2, and of delta·(|y - t| - delta/2) where |y - t| > delta.
Value huber_loss(Value y, Value target, double delta);
/// The mean of t·softplus(-x) + (1-t)·softplus(x): no overflow, no cancellation, and differentiable
/// at 0.
Value binary_cross_entropy_with_logits_loss(Value logits, Value target);
/// The mean of -t·ln p - (1-t)·ln(1-p). Logarithms are at least -100, and the gradient is (p - t) /
/// max(p (1-p), 1e-12).
Value binary_cross_entropy_loss(Value p, Value target);

/// Which rows of classes count, and with which weight.
struct ClassOptions {
  std::optional<int64_t> ignore_index{};
  Value weights{};  ///< [C], float32; null: 1 for each class
  double smoothing = 0;
};
struct ClassLoss {
  Value loss;  ///< one element
  Value mean;  ///< the cross entropy of the labels; its loss_weight() is also the divisor of `loss`
};
/// Mean over rows of -log softmax(logits)[label]; logits [.., C], labels int64 [..]. With smoothing
/// s: (1-s) times that mean, plus s times the mean over all classes, weighted by class.
ClassLoss softmax_cross_entropy_loss(Value logits, Value labels, const ClassOptions& options);
/// Mean over rows of -log_p[label].
ClassLoss nll_loss(Value log_p, Value labels, const ClassOptions& options);

}  // namespace steep
