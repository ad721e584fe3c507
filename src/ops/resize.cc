// Resize(x, roi?, scales?, sizes?) → y and steep.ResizeGrad(dy, shape, roi?, scales?, sizes?) → dx,
// with the same attributes: interpolation is linear in x, one axis after the other.
#include "ops/build.h"
#include "ops/own_types.h"

namespace steep {
namespace {

Grads resize_vjp(Node n, const Grads& dy) {
  return {apply("steep.ResizeGrad",
                {dy[0], shape_of(n.input(0)), n.input(1), n.input(2), n.input(3)}, n.attrs())};
}

Grads resize_grad_vjp(Node n, const Grads& dy) {
  Attrs attrs = n.attrs();
  attrs.set("extrapolation_value", 0.0);
  return {apply("Resize", {dy[0], n.input(2), n.input(3), n.input(4)}, std::move(attrs))};
}

std::vector<Type> resize_grad_infer(Node n) { return {{n.input(0).dtype(), shape_in(n.input(1))}}; }

}  // namespace

extern const OpDef kResize = {.name = "Resize", .vjp = resize_vjp};
extern const OpDef kSteepResizeGrad = {
    .name = "steep.ResizeGrad", .vjp = resize_grad_vjp, .infer = resize_grad_infer};

}  // namespace steep
