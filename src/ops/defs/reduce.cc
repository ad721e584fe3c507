#include "ops/defs/reduce.h"

namespace steep {
namespace {

/// Without axes, all axes are reduced, or none (noop_with_empty_axes).
bool lacks_axes(Node n) {
  Value axes = n.input(1);
  return !axes || (constant(axes) != nullptr && constant(axes)->size() == 0);
}

}  // namespace

void reduce_refine(Node n) {
  const Value x = n.input(0), axes = n.input(1), y = n.output(0);
  if (!axes || constant(axes) != nullptr || !x.type().shape || y.type().shape) return;
  size_t rank = x.shape().size();
  if (integer_of(n, "keepdims") == 0) {
    // Zero axes may mean all axes or none: leave the rank open.
    const auto& count = axes.type().shape;
    if (!count || count->size() != 1 || !count->front().known()) return;
    const auto axis_count = static_cast<size_t>(count->front().value());
    if (axis_count == 0 || axis_count > rank) return;
    rank -= axis_count;
  }
  n.graph().set_type(y, {y.dtype(), Shape(rank)});
}

Value with_reduced_axes(Node n, Value v) {
  if (integer_of(n, "keepdims") != 0) return v;
  if (!lacks_axes(n)) {
    if (constant(n.input(1)) != nullptr) return apply("Unsqueeze", {v, n.input(1)});
    return reshape_like(v, reduce_alike(n, "ReduceMax", n.input(0)));
  }
  if (integer_of(n, "noop_with_empty_axes") != 0) return v;
  return reshape(v, Ints(static_cast<size_t>(n.input(0).rank()), 1));
}

Value reduce_alike(Node n, std::string op, Value x) {
  Attrs attrs{{"keepdims", int64_t{1}},
              {"noop_with_empty_axes", integer_of(n, "noop_with_empty_axes")}};
  return n.input(1) ? apply(std::move(op), {x, n.input(1)}, attrs)
                    : apply(std::move(op), {x}, attrs);
}

Value reduced_count(Node n) {
  Value x = n.input(0), axes = n.input(1);
  Ints axis_numbers;
  if (!lacks_axes(n)) {
    if (constant(axes) == nullptr) {
      auto size = [&](Value v) { return cast_like(apply("Size", {v}), x); };
      return size(x) / size(n.output(0));
    }
    for (int64_t axis : constant(axes)->to_ints())
      axis_numbers.push_back(normal_axis(n, axis, x.rank()));
  } else if (integer_of(n, "noop_with_empty_axes") == 0) {
    for (int64_t axis = 0; axis < x.rank(); ++axis) axis_numbers.push_back(axis);
  }
  return extent_product(x, axis_numbers);
}

Value extent_product(Value x, const Ints& axes) {
  Graph& g = x.graph();
  double product = 1;
  for (int64_t axis : axes) {
    const Dim& extent = x.shape()[static_cast<size_t>(axis)];
    if (!extent.known()) {
      Value extents = apply("Gather", {shape_of(x), ints(g, axes)});
      return cast(apply("ReduceProd", {extents}, {{"keepdims", int64_t{0}}}), x.dtype());
    }
    product *= static_cast<double>(extent.value());
  }
  return scalar(g, product, x.dtype());
}

}  // namespace steep
