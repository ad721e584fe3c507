// Products of quantised numbers. They are exact: computed in integers, or in doubles that hold
// every sum exactly.
#include "ops/defs/quantize.h"
#include "ops/positions.h"

namespace steep {
namespace {

/// x minus its zero point. A vector of zero points has one element per row (`rows`) or per column.
Value centred(Value x, Value zero, DType dtype, bool rows) {
  x = cast(x, dtype);
  if (!zero) return x;
  zero = cast(zero, dtype);
  return x - (rows && zero.rank() == 1 ? unsqueeze(zero, {1}) : zero);
}

std::vector<Value> matmul_integer_decompose(Node n) {
  return {matmul(centred(n.input(0), n.input(2), DType::i32, true),
                 centred(n.input(1), n.input(3), DType::i32, false))};
}

/// Rounds the scaled sums to the quantised dtype of `zero`.
Value requantised(Value sums, Value factor, Value zero) {
  const DType type = zero.dtype();
  Value y = sums * cast(factor, DType::f64);
  if (!is_integer(type)) return cast(y, type);
  y = apply("Round", {y + cast(zero, DType::f64)});
  const QuantisedRange range = quantised_range(type);
  Graph& g = y.graph();
  return cast(
      apply("Clip", {y, scalar(g, range.low, DType::f64), scalar(g, range.high, DType::f64)}),
      type);
}

std::vector<Value> qlinear_matmul_decompose(Node n) {
  Value a_scale = n.input(1), b_scale = n.input(4);
  if (a_scale.rank() == 1) a_scale = unsqueeze(a_scale, {1});
  Value sums = matmul(centred(n.input(0), n.input(2), DType::f64, true),
                      centred(n.input(3), n.input(5), DType::f64, false));
  return {requantised(sums, a_scale * b_scale / n.input(6), n.input(7))};
}

/// The convolution of the node, with its quantised operands centred and in float64.
Value convolved(Node n, Value x, Value x_zero, Value w, Value w_zero) {
  x = centred(x, x_zero, DType::f64, false);
  w = cast(w, DType::f64);
  if (w_zero) {
    w_zero = cast(w_zero, DType::f64);
    w = w - (w_zero.rank() == 1 ? along_axis(w_zero, 0, w.rank()) : w_zero);
  }
  return apply("Conv", {x, w}, n.attrs());
}

std::vector<Value> conv_integer_decompose(Node n) {
  return {cast(convolved(n, n.input(0), n.input(2), n.input(1), n.input(3)), DType::i32)};
}

std::vector<Value> qlinear_conv_decompose(Node n) {
  Value w_scale = n.input(4);
  Value sums = convolved(n, n.input(0), n.input(2), n.input(3), n.input(5));
  if (n.input(8)) sums = sums + along_axis(cast(n.input(8), DType::f64), 1, sums.rank());
  if (w_scale.rank() == 1) w_scale = along_axis(w_scale, 1, sums.rank());
  return {requantised(sums, n.input(1) * w_scale / n.input(6), n.input(7))};
}

}  // namespace

extern const OpDef kConvInteger = {.name = "ConvInteger",
                                   .attributes = {{"auto_pad", "NOTSET"}, {"group", 1}},
                                   .ranks = "2+ = e",
                                   .stops_gradient = true,
                                   .decompose = conv_integer_decompose};
extern const OpDef kQLinearConv = {.name = "QLinearConv",
                                   .attributes = {{"auto_pad", "NOTSET"}, {"group", 1}},
                                   .ranks = "2+ e e = . . e e 1",
                                   .stops_gradient = true,
                                   .decompose = qlinear_conv_decompose};
extern const OpDef kMatMulInteger = {.name = "MatMulInteger",
                                     .ranks = "1+ 1+",
                                     .stops_gradient = true,
                                     .decompose = matmul_integer_decompose};
extern const OpDef kQLinearMatMul = {.name = "QLinearMatMul",
                                     .ranks = "1+ . . 1+",
                                     .stops_gradient = true,
                                     .decompose = qlinear_matmul_decompose};

}  // namespace steep
