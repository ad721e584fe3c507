// steep.SafeSoftmax(x){axis} → y: Softmax, but 0 for a row of nothing but -inf, which has nothing
// to attend to (PyTorch's aten::_safe_softmax). NaN stays NaN.
#include <limits>

#include "ops/build.h"

namespace steep {
namespace {

std::vector<Type> safe_softmax_infer(Node n) { return {n.input(0).type()}; }

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
