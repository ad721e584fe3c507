// y = condition ? a : b
#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "ops/simplify.h"

namespace steep {
namespace {

Grads where_vjp(Node n, const Grads& dy) {
  Value condition = n.input(0);
  return {Value(), where(condition, dy[0], 0), where(condition, 0, dy[0])};
}

/// A constant condition selects one operand.
Value where_simplify(Node n) {
  const Tensor* condition = constant(n.input(0));
  if (condition == nullptr || condition->size() != 1) return {};
  const Value branch = n.input(*condition->data<uint8_t>() != 0 ? 1 : 2);
  return provably_same_type(branch, n.output(0)) ? branch : Value();
}

}  // namespace

extern const OpDef kWhere = {.name = "Where",
                             .elementwise = true,
                             .vjp = where_vjp,
                             .elements = elements::where,
                             .simplify = where_simplify};

}  // namespace steep
