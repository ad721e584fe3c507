#include "ops/build.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "steep/error.h"

namespace steep {
namespace {

Graph& graph_of(std::span<const Value> inputs, const std::string& op) {
  for (Value v : inputs) {
    if (v) return v.graph();
  }
  throw InternalError({.what = "A node without inputs was built through apply().", .op = op});
}

Value binary(const char* op, Value a, Value b) { return apply(op, {a, b}); }
Value unary(const char* op, Value x) { return apply(op, {x}); }
Value like(Value x, double value) { return scalar(x.graph(), value, x.dtype()); }

/// `value` as an integer, without its fraction. NaN and values out of range are an error.
template <typename T>
T whole(double value) {
  constexpr auto kEnd = -static_cast<double>(std::numeric_limits<T>::min());
  if (std::trunc(value) >= -kEnd && std::trunc(value) < kEnd) return static_cast<T>(value);
  throw ModelError({.what = "A constant is not an integer that its dtype can hold.",
                    .expected = fmt::format("{} to {}", std::numeric_limits<T>::min(),
                                            std::numeric_limits<T>::max()),
                    .received = fmt::format("{}", value),
                    .remedy = "Export the model again."});
}

}  // namespace

std::vector<Value> apply_n(std::string op, std::span<const Value> inputs, int outputs,
                           Attrs attrs) {
  Graph& g = graph_of(inputs, op);
  Node n = g.add_node(std::move(op), inputs, outputs, std::move(attrs));
  try {
    infer_types(n);
  } catch (...) {
    g.erase(n);
    throw;
  }
  std::vector<Value> out;
  for (int i = 0; i < outputs; ++i) out.push_back(n.output(i));
  return out;
}

Value apply(std::string op, std::span<const Value> inputs, Attrs attrs) {
  return apply_n(std::move(op), inputs, 1, std::move(attrs))[0];
}

Value apply(std::string op, std::initializer_list<Value> inputs, Attrs attrs) {
  return apply(std::move(op), std::span(inputs.begin(), inputs.size()), std::move(attrs));
}

Value scalar(Graph& g, double value, DType dtype) {
  Tensor t = Tensor::empty(dtype, {});
  switch (dtype) {
    case DType::f32: *t.data<float>() = static_cast<float>(value); break;
    case DType::f64: *t.data<double>() = value; break;
    case DType::i64: *t.data<int64_t>() = whole<int64_t>(value); break;
    case DType::i32: *t.data<int32_t>() = whole<int32_t>(value); break;
    case DType::boolean: *t.data<uint8_t>() = value != 0; break;
    default: return cast(scalar(g, value, DType::f32), dtype);
  }
  return g.add_constant(std::move(t));
}

std::optional<double> scalar_constant(Value v) {
  const Tensor* t = constant(v);
  if (t == nullptr || t->size() != 1) return {};
  if (t->dtype() == DType::f32) return *t->data<float>();
  if (t->dtype() == DType::f64) return *t->data<double>();
  if (!is_integer(t->dtype())) return {};
  return static_cast<double>(t->to_ints()[0]);
}

Value ints(Graph& g, const Ints& values) {
  return g.add_constant(Tensor::from(values, {static_cast<int64_t>(values.size())}));
}

Value ints(Graph& g, std::initializer_list<int64_t> values) { return ints(g, Ints(values)); }

Value operator+(Value a, Value b) {
  return binary(a.type().kind == Kind::tensor ? "Add" : "steep.SumOf", a, b);
}
Value operator-(Value a, Value b) { return binary("Sub", a, b); }
Value operator*(Value a, Value b) { return binary("Mul", a, b); }
Value operator/(Value a, Value b) { return binary("Div", a, b); }
Value operator-(Value a) { return unary("Neg", a); }
Value operator+(Value a, double b) { return a + like(a, b); }
Value operator-(Value a, double b) { return a - like(a, b); }
Value operator*(Value a, double b) { return a * like(a, b); }
Value operator/(Value a, double b) { return a / like(a, b); }
Value operator+(double a, Value b) { return like(b, a) + b; }
Value operator-(double a, Value b) { return like(b, a) - b; }
Value operator*(double a, Value b) { return like(b, a) * b; }
Value operator/(double a, Value b) { return like(b, a) / b; }

Value exp(Value x) { return unary("Exp", x); }
Value log(Value x) { return unary("Log", x); }
Value sqrt(Value x) { return unary("Sqrt", x); }
Value tanh(Value x) { return unary("Tanh", x); }
Value erf(Value x) { return unary("Erf", x); }
Value where(Value condition, Value a, Value b) { return apply("Where", {condition, a, b}); }
Value greater(Value a, Value b) { return binary("Greater", a, b); }
Value less(Value a, Value b) { return binary("Less", a, b); }
Value equal(Value a, Value b) { return binary("Equal", a, b); }
Value less_or_equal(Value a, Value b) { return binary("LessOrEqual", a, b); }
Value slope_of_abs(Value x) { return where(equal(x, x), apply("Sign", {x}), 0); }

namespace {
Value reduce(const char* op, Value x, const Ints& axes, bool keepdims) {
  Attrs attrs{{"keepdims", int64_t{keepdims}}};
  return axes.empty() ? apply(op, {x}, attrs) : apply(op, {x, ints(x.graph(), axes)}, attrs);
}
}  // namespace

Value sum(Value x, const Ints& axes, bool keepdims) {
  return reduce("ReduceSum", x, axes, keepdims);
}
Value mean(Value x, const Ints& axes, bool keepdims) {
  return reduce("ReduceMean", x, axes, keepdims);
}
Value matmul(Value a, Value b) { return binary("MatMul", a, b); }
Value transpose(Value x, const Ints& perm) { return apply("Transpose", {x}, {{"perm", perm}}); }

Value swap_last(Value x) {
  const int64_t r = x.rank();
  Ints perm;
  for (int64_t i = 0; i < r; ++i) perm.push_back(i);
  std::swap(perm.at(static_cast<size_t>(r - 1)), perm.at(static_cast<size_t>(r - 2)));
  return transpose(x, perm);
}

Value shape_of(Value x) {
  if (x.type().concrete()) return ints(x.graph(), x.type().dims());
  return unary("Shape", x);
}

Value reshape(Value x, Value shape) {
  return apply("Reshape", {x, shape}, {{"allowzero", int64_t{1}}});
}
Value reshape(Value x, const Ints& shape) { return apply("Reshape", {x, ints(x.graph(), shape)}); }

Value reshape_like(Value x, Value like) {
  if (x.type().shape && like.type().shape && provably_equal(*x.type().shape, *like.type().shape))
    return x;
  return reshape(x, shape_of(like));
}

Value expand_like(Value x, Value like) {
  if (x.type().shape && like.type().shape && provably_equal(*x.type().shape, *like.type().shape))
    return x;
  return apply("Expand", {x, shape_of(like)});
}

Value sum_to_like(Value x, Value like) {
  if (like.type().kind != Kind::tensor) return x;
  if (x.type().shape && like.type().shape && provably_equal(*x.type().shape, *like.type().shape))
    return x;
  return apply("steep.SumTo", {x, shape_of(like)});
}

Value zeros_like(Value x) {
  if (x.type().kind != Kind::tensor) return unary("steep.ZerosLike", x);
  return expand_like(scalar(x.graph(), 0, x.dtype()), x);
}

Value cast(Value x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return apply("Cast", {x}, {{"to", static_cast<int64_t>(dtype)}});
}
Value cast_like(Value x, Value like) { return cast(x, like.dtype()); }
Value unsqueeze(Value x, const Ints& axes) { return binary("Unsqueeze", x, ints(x.graph(), axes)); }
Value squeeze(Value x, const Ints& axes) { return binary("Squeeze", x, ints(x.graph(), axes)); }

Value concat(std::span<const Value> parts, int64_t axis) {
  return parts.size() == 1 ? parts[0] : apply("Concat", parts, {{"axis", axis}});
}

Value concat(std::initializer_list<Value> parts, int64_t axis) {
  return concat(std::span(parts), axis);
}

int64_t normal_axis(Node n, int64_t axis, int64_t rank) {
  if (axis < -rank || axis >= rank) {
    throw ShapeError({.what = "An axis is out of range.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = fmt::format("an axis in [{}, {}]", -rank, rank - 1),
                      .received = fmt::format("{}", axis)});
  }
  return axis < 0 ? axis + rank : axis;
}

}  // namespace steep
