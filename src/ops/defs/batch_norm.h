// Normalisation of each channel by the statistics of the batch. The other normalisations of images
// are built from it.
#pragma once

#include "ops/build.h"

namespace steep {

/// Attribute of BatchNormalization in training: the running variance averages the sample variance.
inline constexpr const char* kSampleVariance = "sample_variance";

inline constexpr Attribute kNormEpsilon{"epsilon", 1e-5};

/// Attributes of steep.BatchNorm and steep.BatchNormGrad: what is applied to y, "Relu", "Clip" or
/// "Hardtanh", or nothing. The last two have the bounds `low` and `high`, low <= high. Slopes
/// differ: that of Relu is 0 at 0 and 1 at NaN, that of Clip is 1 at both bounds and 0 at NaN, that
/// of Hardtanh is 0 at all three. Hardtanh gives the bound where y equals it: no -0 if that is 0.
inline constexpr Attribute kActivation{"activation", ""}, kLow{"low", 0.0}, kHigh{"high", 0.0};

struct BatchNorm {
  Value y, mean, variance;
};

/// steep.BatchNorm. scale and bias have one element per channel and x's dtype.
BatchNorm batch_norm(Value x, Value scale, Value bias, double epsilon);

/// Updates the running statistic `before` with `now`, the statistic of x. Returns `before` when x
/// is empty, because its statistics are NaN.
Value running_statistic(Value before, Value now, Value x, double momentum);

/// The variance that enters the running variance of `n`, a BatchNormalization in training.
/// `variance` is the population variance of x, which ONNX uses. With the attribute sample_variance
/// (PyTorch's definition) the result is the sample variance, n / (n - 1) times as large.
Value averaged_variance(Node n, Value variance, Value x);

/// v, with one element per channel (axis 1), reshaped so that it broadcasts along the other axes of
/// x.
Value per_channel(Value v, Value x);

/// All axes except the channel axis.
Ints axes_of_statistics(Value x);

}  // namespace steep
