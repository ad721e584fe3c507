// DynamicQuantizeLinear(x): y, y_scale, y_zero_point. The 8-bit range covers the smallest element,
// the largest and 0. ONNX's own function divides 0 by 0 when all elements are 0; here, as in ONNX's
// reference evaluator, the range then has length 1.
#include "ops/build.h"

namespace steep {
namespace {

constexpr double kLargest = 255;

std::vector<Value> dynamic_quantize_linear_decompose(Node n) {
  const Value x = n.input(0);
  const Value zero = scalar(n.graph(), 0, x.dtype());
  auto extreme = [&](const char* op, const char* reduce) {
    return apply(op, {apply(reduce, {x}, {{"keepdims", int64_t{0}}}), zero});
  };
  const Value low = extreme("Min", "ReduceMin"), high = extreme("Max", "ReduceMax");
  const Value reach = high - low;
  const Value scale = where(equal(reach, 0), 1, reach) / kLargest;
  const Value place = apply("Clip", {-low / scale, zero, scalar(n.graph(), kLargest, x.dtype())});
  const Value point = cast(apply("Round", {place}), DType::u8);
  return {apply("QuantizeLinear", {x, scale, point}), scale, point};
}

}  // namespace

extern const OpDef kDynamicQuantizeLinear = {.name = "DynamicQuantizeLinear",
                                             .decompose = dynamic_quantize_linear_decompose};

}  // namespace steep
