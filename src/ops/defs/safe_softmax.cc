// steep.SafeSoftmax(x){axis} → y: Softmax, but 0 for rows that contain only -inf (PyTorch's
// aten::_safe_softmax). NaN stays NaN.
#include <limits>

#include "ops/build.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

std::vector<Type> safe_softmax_infer(Node n) {
  require_operands(n, 1, 1);
  const Value x = n.input(0);
  if (!x || x.type().kind != Kind::tensor || !is_float(x.dtype())) {
    throw_shape_error(n, "An input of a numeric operator is not numeric.",
                      "a tensor of a float type", x ? to_string(x.type()) : "nothing");
  }
  return {x.type()};
}

std::vector<Value> safe_softmax_decompose(Node n) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  Value x = n.input(0);
  const int64_t axis = integer_of(n, "axis");
  Value max = apply("ReduceMax", {x, ints(n.graph(), {axis})}, {{"keepdims", int64_t{1}}});
  Value shut = equal(max, kMinusInfinity);
  return {where(shut, 0, apply("Softmax", {where(shut, 0, x)}, {{"axis", axis}}))};
}

Grads safe_softmax_vjp(Node n, const Grads& dy) {
  return {apply("steep.SoftmaxGrad", {dy[0], n.output(0)}, {{"axis", integer_of(n, "axis")}})};
}

}  // namespace

extern const OpDef kSteepSafeSoftmax = {.name = "steep.SafeSoftmax",
                                        .in_files = true,
                                        .attributes = {{"axis", -1}},
                                        .vjp = safe_softmax_vjp,
                                        .infer = safe_softmax_infer,
                                        .decompose = safe_softmax_decompose};

}  // namespace steep
