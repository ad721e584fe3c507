// BatchNormalization(x, scale, bias, mean, variance){epsilon, momentum, training_mode} → y,
// running_mean, running_variance. Ioffe and Szegedy 2015. In inference the given statistics are
// constants of the formula; in training they only enter the running statistics. ONNX defines the
// running variance with the population variance, PyTorch ({sample_variance}) with the sample
// variance. Files store that attribute as metadata of the node.
#include "ops/defs/batch_norm.h"

namespace steep {
namespace {

std::vector<Value> batch_normalization_decompose(Node n) {
  Value x = n.input(0), scale = n.input(1), bias = n.input(2);
  Value mean = n.input(3), variance = n.input(4);
  const double epsilon = real_of(n, "epsilon");
  if (integer_of(n, "training_mode") == 0) {
    Value factor = cast_like(scale, x) / sqrt(cast_like(variance, x) + epsilon);
    Value y = (x - per_channel(cast_like(mean, x), x)) * per_channel(factor, x);
    return {y + per_channel(cast_like(bias, x), x)};
  }
  const BatchNorm now = batch_norm(x, cast_like(scale, x), cast_like(bias, x), epsilon);
  const double momentum = real_of(n, "momentum");
  return {now.y, running_statistic(mean, now.mean, x, momentum),
          running_statistic(variance, averaged_variance(n, now.variance, x), x, momentum)};
}

}  // namespace

extern const OpDef kBatchNormalization = {
    .name = "BatchNormalization",
    .attributes = {kNormEpsilon, {"momentum", 0.9}, {kSampleVariance, 0}, {"training_mode", 0}},
    .ranks = "1+ 1 1 1 1",
    .settings = {3, 4},
    .decompose = batch_normalization_decompose};

}  // namespace steep
