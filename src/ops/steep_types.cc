#include "ops/steep_types.h"

#include <fmt/format.h>

#include "ops/build.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {

std::optional<Shape> shape_in(Value shape) {
  if (const Tensor* t = constant(shape)) return to_shape(t->to_ints());
  if (const Shape* contents = shape.graph().contents(shape)) return *contents;
  const auto& extents = shape_if_known(shape);
  if (!extents || extents->size() != 1 || !(*extents)[0].known()) return {};
  return Shape(static_cast<size_t>((*extents)[0].value()));
}

const std::optional<Shape>& shape_if_known(Value x) { return x.type().shape; }

Shape broadcast(Node n, const Shape& a, const Shape& b) {
  const Shape& longer = a.size() >= b.size() ? a : b;
  const Shape& shorter = a.size() >= b.size() ? b : a;
  Shape common = longer;
  for (size_t i = 0; i < shorter.size(); ++i) {
    Dim& have = common[longer.size() - shorter.size() + i];
    const Dim& other = shorter[i];
    if (provably_equal(have, other) || (other.known() && other.value() == 1)) continue;
    if (have.known() && have.value() == 1) {
      have = other;
    } else if (have.known() && other.known()) {
      throw_shape_error(n, "The inputs of a node cannot be broadcast to one shape.", to_string(a),
                        to_string(b));
    } else if (other.known()) {
      have = other;  // an extent above 1 holds for every value of the symbol
    } else if (!have.known()) {
      have = Dim();
    }
  }
  return common;
}

Type either(const Type& a, const Type& b) {
  Type type = a;
  if (a.kind != b.kind) {
    const bool sequence = a.kind == Kind::sequence || a.kind == Kind::optional_sequence;
    type.kind = sequence ? Kind::optional_sequence : Kind::optional;
  }
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) {
    type.shape.reset();
    return type;
  }
  for (size_t i = 0; i < a.shape->size(); ++i) {
    if (!provably_equal((*a.shape)[i], (*b.shape)[i])) (*type.shape)[i] = Dim();
  }
  return type;
}

Type without_symbols(Type type) {
  for (size_t i = 0; type.shape && i < type.shape->size(); ++i) {
    Dim& d = (*type.shape)[i];
    if (!d.known()) d = Dim();
  }
  return type;
}

void refine_rank(Node n, int64_t least) {
  const Value y = n.output(0), shape = n.input(1);
  if (!y || y.type().shape || !shape || !shape.type().concrete() || shape.type().dims().size() != 1)
    return;
  const int64_t rank = std::max(shape.type().dims()[0], least);
  constexpr int64_t kHighestRank = 64;
  if (rank > kHighestRank) return;
  n.graph().set_type(y, {y.dtype(), Shape(static_cast<size_t>(rank))});
}

void require_rank(Node n, int i, int64_t rank) {
  const auto& shape = shape_if_known(n.input(i));
  if (!shape || static_cast<int64_t>(shape->size()) == rank) return;
  throw_shape_error(n, fmt::format("Input {} of a node has the wrong number of dimensions.", i),
                    counted(rank, "dimension"), to_string(n.input(i).type()));
}

void require_operands(Node n, int inputs, int outputs) {
  if (n.input_count() == inputs && n.output_count() <= outputs) return;
  throw_shape_error(n, "A node has the wrong number of operands.",
                    fmt::format("{}, {}", counted(inputs, "input"), counted(outputs, "output")),
                    fmt::format("{}, {}", counted(n.input_count(), "input"),
                                counted(n.output_count(), "output")));
}

DType result_dtype(Node n, DType otherwise) {
  return static_cast<DType>(n.attrs().integer("dtype", static_cast<int64_t>(otherwise)));
}

void throw_shape_error(Node n, std::string what, std::string expected, std::string received) {
  throw ShapeError({.what = std::move(what),
                    .node = n.name(),
                    .op = n.op(),
                    .expected = std::move(expected),
                    .received = std::move(received)});
}

}  // namespace steep
