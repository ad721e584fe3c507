#include "ops/positions.h"

#include <string>

#include "steep/error.h"

namespace steep {

Value extent_of(Value x, int64_t axis) {
  const auto& shape = x.type().shape;
  Graph& g = x.graph();
  if (shape && (axis < 0 || axis >= x.rank())) {
    throw ShapeError({.what = "A value has too few dimensions.",
                      .node = x.name(),
                      .expected = std::to_string(axis + 1) + " dimensions or more",
                      .received = to_string(x.type())});
  }
  if (shape && (*shape)[static_cast<size_t>(axis)].known())
    return g.add_constant(Tensor::scalar((*shape)[static_cast<size_t>(axis)].value()));
  return apply("Gather", {shape_of(x), g.add_constant(Tensor::scalar(axis))});
}

Value positions(Value count) {
  Graph& g = count.graph();
  return apply("Range", {scalar(g, 0, DType::i64), count, scalar(g, 1, DType::i64)});
}

Ints counting(int64_t begin, int64_t end) {
  Ints numbers;
  for (int64_t i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

Value as_vector(Value scalar) { return unsqueeze(scalar, {0}); }

Value as_index(Value v) { return reshape(cast(v, DType::i64), Ints{}); }

Value along_axis(Value vector, int64_t axis, int64_t rank) {
  Ints others;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != axis) others.push_back(i);
  }
  return others.empty() ? vector : unsqueeze(vector, others);
}

Value part(Value vector, int64_t begin, int64_t end) {
  return apply("Slice", {vector, ints(vector.graph(), {begin}), ints(vector.graph(), {end})});
}

Value part(Value vector, int64_t at) { return part(vector, at, at + 1); }

Value from_the_front(Value index, Value extent) { return where(less(index, 0), extent, index); }

Value planes(Value x) {
  if (x.rank() == 3) return x;
  const Value shape = shape_of(x);
  return reshape(x,
                 concat({part(shape, 0, 2), apply("ReduceProd", {part(shape, 2, x.rank())})}, 0));
}

Value slice(Value x, int64_t axis, Value start, Value end) {
  return apply("Slice", {x, as_vector(start), as_vector(end), ints(x.graph(), {axis})});
}

}  // namespace steep
