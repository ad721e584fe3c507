// y = Π x. The slope of each factor is the product of the other factors, also with zero factors.
#include "ops/defs/reduce.h"
#include "ops/product.h"
#include "ops/shape_arithmetic.h"

namespace steep {
namespace {

Grads reduce_prod_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const Factors factors = factors_of([&](std::string_view op, const auto& of) {
    return reduce_alike(n, op == "mul" ? "ReduceProd" : "ReduceSum", of(x));
  });
  return {with_reduced_axes(n, dy[0]) * product_without(x, factors)};
}

}  // namespace

extern const OpDef kReduceProd = {.name = "ReduceProd",
                                  .attributes = kReduceAttributes,
                                  .vjp = reduce_prod_vjp,
                                  .refine = reduce_refine,
                                  .elements = elements::reduce_prod};

}  // namespace steep
