// MaxUnpool(x[N, C, ...], indices, output_shape?): zeros, with the elements of x at `indices` of
// the flattened input of the MaxPool with the same attributes. A larger output_shape is padded with
// zeros at the end of each axis.
#include "ops/positions.h"
#include "ops/steep_types.h"
#include "runtime/counted.h"

namespace steep {
namespace {

/// The shape of the array that `indices` refer to.
std::optional<Shape> unpooled_shape(Node n) {
  const auto& x = shape_if_known(n.input(0));
  if (!x) return {};
  const Ints kernel = n.attrs().ints("kernel_shape");
  const size_t rank = kernel.size();
  const Ints strides = n.attrs().ints("strides", Ints(rank, 1));
  const Ints pads = n.attrs().ints("pads", Ints(2 * rank, 0));
  if (x->size() != rank + 2 || strides.size() != rank || pads.size() != 2 * rank) {
    throw_shape_error(n, "The attributes of an unpooling do not fit its input.",
                      std::to_string(rank) + " spatial dimensions", to_string(x));
  }
  Shape y{(*x)[0], (*x)[1]};
  for (size_t i = 0; i < rank; ++i) {
    const Dim& in = (*x)[i + 2];
    const int64_t extent = (in.value() - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i];
    y.push_back(in.known() ? Dim(extent) : Dim());
  }
  return y;
}

Ints known_extents(Node n) {
  const auto shape = unpooled_shape(n);
  if (!shape || !Type{DType::f32, shape}.concrete()) {
    throw_shape_error(n, "An unpooling with output_shape needs known extents.", "numbers",
                      to_string(shape));
  }
  return Type{DType::f32, shape}.dims();
}

std::vector<Type> max_unpool_infer(Node n) {
  if (!n.input(2)) return {{n.input(0).dtype(), unpooled_shape(n)}};
  const std::optional<Shape> shape = shape_in(n.input(2));
  const auto& x = shape_if_known(n.input(0));
  if (shape && x && shape->size() != x->size()) {
    throw_shape_error(n, "The output_shape of an unpooling does not fit its input.",
                      counted(x->size(), "extent"), to_string(shape));
  }
  return {{n.input(0).dtype(), shape}};
}

Grads max_unpool_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), d = dy[0];
  if (n.input(2)) {
    const Ints extents = known_extents(n);
    d = apply("Slice", {d, ints(n.graph(), Ints(extents.size(), 0)), ints(n.graph(), extents)});
  }
  Value values = apply("GatherElements", {reshape(d, {-1}), reshape(n.input(1), {-1})});
  return {reshape_like(values, x)};
}

/// REQUIRES: known shapes.
std::vector<Value> max_unpool_decompose(Node n) {
  Graph& g = n.graph();
  Value x = n.input(0);
  const Ints extents = known_extents(n);
  if (!n.output(0).type().concrete())
    throw_shape_error(n, "An unpooling needs a known output_shape.", "numbers",
                      to_string(n.output(0).type()));
  Value count = ints(g, {element_count(extents)});
  Value zeros = apply("Expand", {scalar(g, 0, x.dtype()), count});
  Value places = from_the_front(reshape(n.input(1), {-1}), count);
  Value flat = apply("ScatterElements", {zeros, places, reshape(x, {-1})});
  Value y = reshape(flat, extents);
  const Dims dims = n.output(0).type().dims();
  if (dims == extents) return {y};
  Ints pads(2 * extents.size(), 0);
  for (size_t i = 0; i < extents.size(); ++i) pads[extents.size() + i] = dims[i] - extents[i];
  return {apply("Pad", {y, ints(g, pads)})};
}

}  // namespace

extern const OpDef kMaxUnpool = {.name = "MaxUnpool",
                                 .ranks = "2+ = 1",
                                 .sizes = {{2, 0}},
                                 .vjp = max_unpool_vjp,
                                 .infer = max_unpool_infer,
                                 .decompose = max_unpool_decompose};

}  // namespace steep
