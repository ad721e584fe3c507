// steep.GlobalNorm(grads…): √Σ g² over all elements of all inputs, a float32 scalar. For gradient
// clipping.
#include "ops/build.h"

namespace steep {
namespace {

std::vector<Type> global_norm_infer(Node) { return {{DType::f32, Shape{}}}; }

std::vector<Value> global_norm_decompose(Node n) {
  Value total;
  for (int i = 0; i < n.input_count(); ++i) {
    Value g = n.input(i);
    if (g.dtype() != DType::f64) g = cast(g, DType::f32);  // squares would overflow in 16 bits
    Value squares = cast(sum(g * g, {}, false), DType::f32);
    total = total ? total + squares : squares;
  }
  return {sqrt(total)};
}

}  // namespace

extern const OpDef kSteepGlobalNorm = {
    .name = "steep.GlobalNorm", .infer = global_norm_infer, .decompose = global_norm_decompose};

}  // namespace steep
