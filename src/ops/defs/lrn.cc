// LRN(x[N, C, ...]){size, alpha, beta, bias}: x divided by a power of the mean square of the `size`
// neighbouring channels. Krizhevsky et al. 2012. The mean is an average pooling along the channels.
#include "ops/positions.h"

namespace steep {
namespace {

std::vector<Value> lrn_decompose(Node n) {
  Value x = n.input(0);
  const int64_t size = integer_of(n, "size");
  const double alpha = real_of(n, "alpha"), beta = real_of(n, "beta");
  Value average = apply("AveragePool", {unsqueeze(planes(x * x), {1})},
                        {{"kernel_shape", Ints{size, 1}},
                         {"pads", Ints{(size - 1) / 2, 0, size / 2, 0}},
                         {"count_include_pad", int64_t{1}}});
  Value base = alpha * reshape_like(average, x) + real_of(n, "bias");
  return {x * apply("Pow", {base, scalar(n.graph(), -beta, x.dtype())})};
}

}  // namespace

extern const OpDef kLRN = {
    .name = "LRN",
    .attributes = {{"alpha", 1e-4}, {"beta", 0.75}, {"bias", 1.0}, {"size", 1}},
    .ranks = "2+",
    .decompose = lrn_decompose};

}  // namespace steep
