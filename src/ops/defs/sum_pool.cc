// steep.SumPool(x[N, C, ...]) → y and steep.SumPoolGrad(dy, shape) → dx, with the attributes of
// ONNX's pooling operators: sums over windows. Padding counts as 0.
#include "ops/build.h"
#include "ops/defs/conv.h"
#include "ops/defs/pool.h"
#include "ops/positions.h"
#include "ops/steep_types.h"

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
  const std::string auto_pad = text_of(node, "auto_pad");
  const bool ceil = integer_of(node, "ceil_mode") != 0;
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
    // The last window must not start in the padding at the end.
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

/// [N, C, …] → [N C, 1, …]
Value separate_planes(Value x) {
  const Value shape = shape_of(x), count = apply("ReduceProd", {part(shape, 0, 2)});
  return reshape(x, concat({count, ints(x.graph(), {1}), part(shape, 2, x.rank())}, 0));
}

Value window_of_ones(Node n, DType dtype) {
  const Ints kernel = n.attrs().ints("kernel_shape");
  Dims dims{1, 1};
  dims.insert(dims.end(), kernel.begin(), kernel.end());
  return apply("Expand", {scalar(n.graph(), 1, dtype), ints(n.graph(), dims)});
}

/// With ceil_mode the last window may extend beyond the padding, but must not start in the padding
/// at the end.
std::vector<Value> sum_pool_in_parts(Node n) {
  Graph& g = n.graph();
  const Value x = n.input(0), ones = window_of_ones(n, x.dtype());
  const Value rows = separate_planes(x), counts = part(shape_of(x), 0, 2);
  const bool same = text_of(n, "auto_pad").rfind("SAME", 0) == 0;
  const bool ceil = integer_of(n, "ceil_mode") != 0 && !same;
  Attrs attrs = n.attrs();
  Value ends;
  if (ceil) {
    ConvWindow window(n, rows.shape(), ones.shape());
    Ints begins;
    for (size_t i = 0; i < window.strides.size(); ++i) {
      window.pads[window.strides.size() + i] += window.strides[i] - 1;
      begins.push_back(window.pads[i] + window.strides[i] - 1);
    }
    ends = (part(shape_of(x), 2, x.rank()) + ints(g, begins)) / ints(g, window.strides);
    attrs.set("pads", window.pads);
    attrs.erase("auto_pad");
  }
  Value y = conv(rows, ones, attrs);
  if (ceil) {
    const Ints zeros(static_cast<size_t>(x.rank()) - 2, 0);
    y = apply("Slice", {y, ints(g, zeros), ends, ints(g, counting(2, x.rank()))});
  }
  return {reshape(y, concat({counts, part(shape_of(y), 2, x.rank())}, 0))};
}

std::vector<Value> sum_pool_grad_in_parts(Node n) {
  Graph& g = n.graph();
  const Value dy = n.input(0), shape = n.input(1);
  const Value rows = separate_planes(dy);
  const Value dx = conv_grad_input(
      rows, window_of_ones(n, dy.dtype()),
      concat({part(shape_of(rows), 0), ints(g, {1}), part(shape, 2, dy.rank())}, 0), n.attrs());
  return {reshape(dx, shape)};
}

}  // namespace

extern const OpDef kSteepSumPool = {.name = "steep.SumPool",
                                    .attributes = kMeanPoolAttributes,
                                    .vjp = sum_pool_vjp,
                                    .infer = sum_pool_infer,
                                    .export_decomposition = sum_pool_in_parts};
extern const OpDef kSteepSumPoolGrad = {.name = "steep.SumPoolGrad",
                                        .attributes = kMeanPoolAttributes,
                                        .vjp = sum_pool_grad_vjp,
                                        .infer = sum_pool_grad_infer,
                                        .export_decomposition = sum_pool_grad_in_parts};

}  // namespace steep
