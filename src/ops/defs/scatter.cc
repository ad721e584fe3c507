#include "ops/defs/scatter.h"

#include "ops/product.h"

namespace steep {

Grads scatter_vjp(Node n, const Grads& dy, const ScatterOps& ops) {
  Value data = n.input(0), updates = n.input(2), y = n.output(0);
  const std::string reduction = text_of(n, "reduction");
  if (reduction == "none") {
    return {ops.write(n, dy[0], zeros_like(updates), "none"), Value(), ops.read(n, dy[0])};
  }
  if (reduction == "add") return {dy[0], Value(), ops.read(n, dy[0])};
  if (reduction == "mul") {
    const Factors factors = factors_of(
        [&](const char* op, const auto& of) { return ops.write(n, of(data), of(updates), op); });
    const Factors wide = read_factors(factors, [&](Value v) { return ops.read(n, v); });
    return {dy[0] * product_without(data, factors), Value(),
            ops.read(n, dy[0]) * product_without(updates, wide)};
  }
  // max, min: the elements that attain the result share its gradient.
  Value data_attains = cast_like(equal(data, y), y);
  Value updates_attain = cast_like(equal(updates, ops.read(n, y)), y);
  Value share = dy[0] / ops.write(n, data_attains, updates_attain, "add");
  return {share * data_attains, Value(), ops.read(n, share) * updates_attain};
}

}  // namespace steep
