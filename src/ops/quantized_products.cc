// Products of quantised numbers: exact in integers, or in doubles that hold every sum of them.
#include "ops/quantize.h"

namespace steep {
namespace {

/// Numbers less their zero point. A vector of zero points has one a row (`rows`) or a column.
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

/// Rounded to the quantised type `zero`'s.
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

}  // namespace

extern const OpDef kMatMulInteger = {
    .name = "MatMulInteger", .stops_gradient = true, .decompose = matmul_integer_decompose};
extern const OpDef kQLinearMatMul = {
    .name = "QLinearMatMul", .stops_gradient = true, .decompose = qlinear_matmul_decompose};

}  // namespace steep
