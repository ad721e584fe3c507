// LRN(x[N, C, ...]){size, alpha, beta, bias}: x divided by a power of the mean square of the `size`
// channels around. Krizhevsky et al. 2012. The mean is an average pooling along the channels.
#include "ops/positions.h"

namespace steep {
namespace {

std::vector<Value> lrn_decompose(Node n) {
  Value x = n.input(0);
  const int64_t size = n.attrs().integer("size", 1);
  const double alpha = n.attrs().real("alpha", 1e-4), beta = n.attrs().real("beta", 0.75);
  Value average = apply("AveragePool", {unsqueeze(planes(x * x), {1})},
                        {{"kernel_shape", Ints{size, 1}},
                         {"pads", Ints{(size - 1) / 2, 0, size / 2, 0}},
                         {"count_include_pad", int64_t{1}}});
  Value base = alpha * reshape_like(average, x) + n.attrs().real("bias", 1);
  return {x * apply("Pow", {base, scalar(n.graph(), -beta, x.dtype())})};
}

}  // namespace

extern const OpDef kLRN = {.name = "LRN", .decompose = lrn_decompose};

}  // namespace steep
