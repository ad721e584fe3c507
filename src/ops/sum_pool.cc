// steep.SumPool(x[N, C, ...]) → y and steep.SumPoolGrad(dy, shape) → dx, with the attributes of
// ONNX's poolings: sums over windows. Padding counts as 0.
#include "ops/build.h"
#include "ops/own_types.h"
#include "ops/pool.h"

namespace steep {

std::optional<Shape> pooled_shape(Node node, Value x) {
  const auto& shape = shape_if_known(x);
  if (!shape) return {};
  const Attrs& attrs = node.attrs();
  const Ints kernel = attrs.ints("kernel_shape");
  const size_t rank = kernel.size();
  const Ints strides = attrs.ints("strides", Ints(rank, 1));
  const Ints dilations = attrs.ints("dilations", Ints(rank, 1));
  const Ints pads = attrs.ints("pads", Ints(2 * rank, 0));
  if (shape->size() != rank + 2 || strides.size() != rank || dilations.size() != rank ||
      pads.size() != 2 * rank) {
    throw_shape_error(node, "The attributes of a pooling do not fit its input.",
                      std::to_string(rank) + " spatial dimensions", to_string(shape));
  }
  const std::string auto_pad = attrs.string("auto_pad", "NOTSET");
  const bool ceil = attrs.integer("ceil_mode", 0) != 0;
  Shape y{(*shape)[0], (*shape)[1]};
  for (size_t i = 0; i < rank; ++i) {
    const Dim& in = (*shape)[i + 2];
    if (!in.known()) {
      y.emplace_back();
      continue;
    }
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      y.emplace_back((in.value() + strides[i] - 1) / strides[i]);
      continue;
    }
    const bool given = auto_pad != "VALID";
    const int64_t begin = given ? pads[i] : 0;
    const int64_t padded = in.value() + begin + (given ? pads[rank + i] : 0);
    const int64_t room = padded - ((kernel[i] - 1) * dilations[i] + 1);
    int64_t extent = room < 0 ? 0 : (room + (ceil ? strides[i] - 1 : 0)) / strides[i] + 1;
    // The last window has to start before the padding at the end.
    if (ceil && (extent - 1) * strides[i] >= in.value() + begin) --extent;
    y.emplace_back(extent);
  }
  return y;
}

namespace {

Grads sum_pool_vjp(Node n, const Grads& dy) {
  return {apply("steep.SumPoolGrad", {dy[0], shape_of(n.input(0))}, n.attrs())};
}

std::vector<Type> sum_pool_infer(Node n) {
  return {{n.input(0).dtype(), pooled_shape(n, n.input(0))}};
}

Grads sum_pool_grad_vjp(Node n, const Grads& dy) {
  return {apply("steep.SumPool", {dy[0]}, n.attrs())};
}

std::vector<Type> sum_pool_grad_infer(Node n) {
  return {{n.input(0).dtype(), shape_in(n.input(1))}};
}

}  // namespace

extern const OpDef kSteepSumPool = {
    .name = "steep.SumPool", .vjp = sum_pool_vjp, .infer = sum_pool_infer};
extern const OpDef kSteepSumPoolGrad = {
    .name = "steep.SumPoolGrad", .vjp = sum_pool_grad_vjp, .infer = sum_pool_grad_infer};

}  // namespace steep
