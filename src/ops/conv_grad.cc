// steep.ConvGradInput(dy, w, shape) → dx and steep.ConvGradWeight(dy, x, shape) → dw: the gradients
// of Conv(x, w) with the same attributes, allow_bf16 for what each reads; `shape` is that of the
// result.
#include "ops/build.h"
#include "ops/conv.h"
#include "ops/own_types.h"

namespace steep {
namespace {

Grads conv_grad_input_vjp(Node n, const Grads& dy) {
  Value upstream = n.input(0), w = n.input(1), dx = dy[0];
  return {conv(dx, w, n.attrs()), conv_grad_weight(upstream, dx, shape_of(w), n.attrs())};
}

Grads conv_grad_weight_vjp(Node n, const Grads& dy) {
  Value upstream = n.input(0), x = n.input(1), dw = dy[0];
  return {conv(x, dw, n.attrs()), conv_grad_input(upstream, dw, shape_of(x), n.attrs())};
}

std::vector<Type> infer_given_shape(Node n) { return {{n.input(0).dtype(), shape_in(n.input(2))}}; }

}  // namespace

extern const OpDef kSteepConvGradInput = {
    .name = "steep.ConvGradInput", .vjp = conv_grad_input_vjp, .infer = infer_given_shape};
extern const OpDef kSteepConvGradWeight = {
    .name = "steep.ConvGradWeight", .vjp = conv_grad_weight_vjp, .infer = infer_given_shape};

}  // namespace steep
