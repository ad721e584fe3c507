// Normalisation of each channel by the statistics of the batch, from which the other normalisations
// of images are made.
#pragma once

#include "ops/build.h"

namespace steep {

struct BatchNorm {
  Value y, mean, variance;
};

/// steep.BatchNorm. scale and bias, one element a channel, are of x's dtype.
BatchNorm batch_norm(Value x, Value scale, Value bias, double epsilon);

/// The running statistic that follows `before` once that of x is `now`: `before` itself where x is
/// empty, whose statistics are not numbers.
Value running_statistic(Value before, Value now, Value x, double momentum);

/// v, which has one element a channel (axis 1), so that it broadcasts along the other axes of x.
Value per_channel(Value v, Value x);

/// All axes but the channels'.
Ints axes_of_statistics(Value x);

}  // namespace steep
