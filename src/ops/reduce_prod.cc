// y = Π x. Each factor's slope is the product of the others, also where some factors are zero.
#include "ops/product.h"
#include "ops/reduce.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads reduce_prod_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  Value product = reduce_alike(n, "ReduceProd", nonzero_or_one(x));
  Value zeros = reduce_alike(n, "ReduceSum", is_zero(x));
  return {with_reduced_axes(n, dy[0]) * product_without(x, product, zeros)};
}

}  // namespace

extern const OpDef kReduceProd = {.name = "ReduceProd",
                                  .attributes = kReduceAttributes,
                                  .vjp = reduce_prod_vjp,
                                  .elements = elements::reduce_prod};

}  // namespace steep
