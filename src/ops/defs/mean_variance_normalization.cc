// MeanVarianceNormalization(x){axes}: (x - mean) / (deviation + 1e-9). ONNX's own function
// subtracts the square of the mean from the mean of squares, which loses all digits when the mean
// is large.
#include "ops/build.h"

namespace steep {
namespace {

std::vector<Value> mean_variance_normalization_decompose(Node n) {
  const Value x = n.input(0);
  const Ints axes = n.attrs().ints("axes", {0, 2, 3});
  const Value centered = x - mean(x, axes, true);
  const Value variance = mean(centered * centered, axes, true);
  // Where all elements are equal the deviation has no derivative; as in PyTorch, 0 is used.
  const Value flat = equal(variance, 0);
  const Value deviation = where(flat, 0, sqrt(where(flat, 1, variance)));
  return {centered / (deviation + 1e-9)};
}

// ONNX's schema has no inference function.
std::vector<Type> mean_variance_normalization_infer(Node n) { return {n.input(0).type()}; }

}  // namespace

extern const OpDef kMeanVarianceNormalization = {
    .name = "MeanVarianceNormalization",
    .infer = mean_variance_normalization_infer,
    .decompose = mean_variance_normalization_decompose};

}  // namespace steep
