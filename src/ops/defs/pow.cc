// y = xᵉ, in x's dtype. Where the term 0⁰ makes a formula undefined, the gradient is 0, as in
// PyTorch.
#include <limits>

#include "ops/build.h"

namespace steep {
namespace {

/// xᵉ, with a product instead of Pow where possible.
Value power(Value x, double e) {
  if (e == 1) return x;
  if (e == 2) return x * x;
  return apply("Pow", {x, scalar(x.graph(), e, x.dtype())});
}

Grads pow_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), y = n.output(0);
  if (const auto e = scalar_constant(n.input(1))) {
    if (*e == 0) return {zeros_like(x)};
    if (*e == 1) return {dy[0]};
    return {dy[0] * (*e * power(x, *e - 1))};
  }
  Value e = cast_like(n.input(1), x);
  // Use 0 where e is 0 and xᵉ⁻¹ is infinite or NaN. Elsewhere the product is 0 by itself, and keeps
  // its derivative in e.
  Value rest = apply("Pow", {x, e - 1.0});
  Value undefined =
      apply("Not", {less(apply("Abs", {rest}), std::numeric_limits<double>::infinity())});
  Value slope = where(apply("And", {equal(e, 0), undefined}), 0, e * rest);
  if (!is_float(n.input(1).dtype())) return {dy[0] * slope};
  Value flat = apply("And", {equal(x, 0), apply("GreaterOrEqual", {e, zeros_like(e)})});
  return {dy[0] * slope, cast_like(dy[0] * where(flat, 0, y * log(x)), n.input(1))};
}

}  // namespace

extern const OpDef kPow = {.name = "Pow", .elementwise = true, .settings = {1}, .vjp = pow_vjp};

}  // namespace steep
