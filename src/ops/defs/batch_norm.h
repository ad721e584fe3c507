// Normalisation of each channel by the statistics of the batch, from which the other normalisations
// of images are made.
#pragma once

#include "ops/build.h"

namespace steep {

/// Attribute of BatchNormalization in training: the running variance averages the sample's.
inline constexpr const char* kSampleVariance = "sample_variance";

inline constexpr Attribute kNormEpsilon{"epsilon", 1e-5};

struct BatchNorm {
  Value y, mean, variance;
};

/// steep.BatchNorm. scale and bias, one element a channel, are of x's dtype.
BatchNorm batch_norm(Value x, Value scale, Value bias, double epsilon);

/// The running statistic that follows `before` once that of x is `now`: `before` itself where x is
/// empty, whose statistics are not numbers.
Value running_statistic(Value before, Value now, Value x, double momentum);

/// What the running variance of `n`, a BatchNormalization in training, is an average of, once the
/// variance of x is `variance`: that one, the population's, as ONNX defines it, or the sample's,
/// n / (n - 1) times as large, where the attribute sample_variance asks for PyTorch's definition.
Value averaged_variance(Node n, Value variance, Value x);

/// v, which has one element a channel (axis 1), so that it broadcasts along the other axes of x.
Value per_channel(Value v, Value x);

/// All axes but the channels'.
Ints axes_of_statistics(Value x);

}  // namespace steep
