#include "ops/defs/matrices.h"

#include <fmt/format.h>

#include "ops/positions.h"
#include "ops/steep_types.h"

namespace steep {

Type matrices_in(Node n, int i) {
  const Value x = n.input(i);
  const std::string received = x ? to_string(x.type()) : "nothing";
  if (!x || x.type().kind != Kind::tensor || (x.dtype() != DType::f32 && x.dtype() != DType::f64)) {
    throw_shape_error(n, fmt::format("Input {} of a node is of the wrong type.", i),
                      "a tensor of float32 or float64", received);
  }
  const auto& shape = shape_if_known(x);
  if (shape && shape->size() < 2) {
    throw_shape_error(n, fmt::format("Input {} of a node holds no matrices.", i),
                      "2 dimensions or more", received);
  }
  return x.type();
}

Type squares_in(Node n, int i) {
  Type type = matrices_in(n, i);
  if (!type.shape) return type;
  Dim& rows = type.shape->end()[-2];
  Dim& columns = type.shape->end()[-1];
  if (rows.known() && columns.known() && rows.value() != columns.value()) {
    throw_shape_error(n, fmt::format("Input {} of a node holds no square matrices.", i),
                      "as many rows as columns", to_string(type));
  }
  if (rows.known()) {
    columns = rows;
  } else {
    rows = columns;
  }
  return type;
}

Type solution_of(Node n, int i, int j) {
  const Type a = squares_in(n, i), b = matrices_in(n, j);
  if (a.dtype != b.dtype) {
    throw_shape_error(n, "The inputs of a node are of different dtypes.",
                      std::string(name_of(a.dtype)), std::string(name_of(b.dtype)));
  }
  if (!a.shape || !b.shape) return {b.dtype, std::nullopt};
  const Dim& size = a.shape->back();
  const Dim& rows = b.shape->end()[-2];
  if (size.known() && rows.known() && size.value() != rows.value()) {
    throw_shape_error(n, "Matrices and right-hand sides have different numbers of rows.",
                      to_string(a), to_string(b));
  }
  Shape shape = broadcast(n, Shape(a.shape->begin(), a.shape->end() - 2),
                          Shape(b.shape->begin(), b.shape->end() - 2));
  shape.push_back(size.known() ? size : rows);
  shape.push_back(b.shape->back());
  return {b.dtype, std::move(shape)};
}

Type stack_of(const Type& type, int64_t axes, DType dtype) {
  if (!type.shape) return {dtype, std::nullopt};
  return {dtype, Shape(type.shape->begin(), type.shape->end() - axes)};
}

Value identity_for(Value squares) {
  const Value places = positions(extent_of(squares, squares.rank() - 1));
  return cast(equal(unsqueeze(places, {1}), unsqueeze(places, {0})), squares.dtype());
}

}  // namespace steep
