// Builds graphs for rules and passes: apply() for any op, and arithmetic on values.
//
//   Value y = apply("Softmax", {x}, {{"axis", int64_t{-1}}});
//   Value dx = y * (dy - sum(dy * y, {-1}, true));
//
// Every function adds nodes to the graph of its operands and infers the types of their outputs.
// Errors of inference (ShapeError, ModelError) name the node.
#pragma once

#include <initializer_list>
#include <optional>

#include "ops/op_def.h"

namespace steep {

/// Adds one node with one output.
Value apply(std::string op, std::initializer_list<Value> inputs, Attrs attrs = {});
Value apply(std::string op, std::span<const Value> inputs, Attrs attrs = {});
/// Adds one node with several outputs.
std::vector<Value> apply_n(std::string op, std::span<const Value> inputs, int outputs,
                           Attrs attrs = {});

/// Infers and stores the types (and, for shape arithmetic, the contents) of a node's outputs.
void infer_types(Node n);

// A scalar operand gets the dtype of the other operand.
Value scalar(Graph& g, double value, DType dtype);
Value ints(Graph& g, std::initializer_list<int64_t> values);
Value ints(Graph& g, const Ints& values);

Value operator+(Value a, Value b);
Value operator-(Value a, Value b);
Value operator*(Value a, Value b);
Value operator/(Value a, Value b);
Value operator-(Value a);
Value operator+(Value a, double b);
Value operator-(Value a, double b);
Value operator*(Value a, double b);
Value operator/(Value a, double b);
Value operator+(double a, Value b);
Value operator-(double a, Value b);
Value operator*(double a, Value b);
Value operator/(double a, Value b);

Value exp(Value x);
Value log(Value x);
Value sqrt(Value x);
Value tanh(Value x);
Value erf(Value x);
Value where(Value condition, Value a, Value b);
Value greater(Value a, Value b);
Value less(Value a, Value b);
Value equal(Value a, Value b);
Value less_or_equal(Value a, Value b);
inline Value where(Value condition, Value a, double b) {
  return where(condition, a, scalar(a.graph(), b, a.dtype()));
}
inline Value where(Value condition, double a, Value b) {
  return where(condition, scalar(b.graph(), a, b.dtype()), b);
}
inline Value greater(Value a, double b) { return greater(a, scalar(a.graph(), b, a.dtype())); }
inline Value less(Value a, double b) { return less(a, scalar(a.graph(), b, a.dtype())); }
inline Value equal(Value a, double b) { return equal(a, scalar(a.graph(), b, a.dtype())); }
inline Value less_or_equal(Value a, double b) {
  return less_or_equal(a, scalar(a.graph(), b, a.dtype()));
}
/// The sign of x, 0 for NaN: the slope of |x|, as in PyTorch.
Value slope_of_abs(Value x);
/// Sum over `axes` (negative counts from the end; empty: all axes).
Value sum(Value x, const Ints& axes, bool keepdims);
Value mean(Value x, const Ints& axes, bool keepdims);
Value matmul(Value a, Value b);
Value transpose(Value x, const Ints& perm);
/// Swaps the last two axes. REQUIRES: rank of at least 2.
Value swap_last(Value x);
Value shape_of(Value x);
Value reshape(Value x, Value shape);
Value reshape(Value x, const Ints& shape);
/// `x` with the shape of `like`. At run time only the shape of `like` is read.
Value reshape_like(Value x, Value like);
Value expand_like(Value x, Value like);
/// Sum of `x` over the axes along which `like` was broadcast to the shape of x: the transpose of
/// broadcasting.
Value sum_to_like(Value x, Value like);
Value zeros_like(Value x);
Value cast(Value x, DType dtype);
Value cast_like(Value x, Value like);
Value unsqueeze(Value x, const Ints& axes);
Value squeeze(Value x, const Ints& axes);
/// Concatenates `parts` along `axis`; returns a single part unchanged. REQUIRES: at least one part.
Value concat(std::initializer_list<Value> parts, int64_t axis);
Value concat(std::span<const Value> parts, int64_t axis);

/// The tensor of a constant; nullptr for every other value, also for states with an initial tensor.
inline const Tensor* constant(Value v) {
  return v && v.role() == Role::constant ? v.tensor() : nullptr;
}

/// The element of a one-element constant of float32, float64 or an integer type; otherwise nothing.
std::optional<double> scalar_constant(Value v);

/// Axis counted from the front. REQUIRES: known rank. Throws ShapeError when out of range.
int64_t normal_axis(Node n, int64_t axis, int64_t rank);

}  // namespace steep
