// A value that is quantised and dequantised at once.

#include <cstring>

#include "model/upgrade/rules.h"
#include "ops/build.h"

namespace steep {
namespace {

/// Whether the two are the same value, or constants with the same content: exporters write one per
/// node.
bool same(Value a, Value b) {
  if (a == b) return true;
  const Tensor* x = a ? constant(a) : nullptr;
  const Tensor* y = b ? constant(b) : nullptr;
  return x != nullptr && y != nullptr && x->dtype() == y->dtype() && x->dims() == y->dims() &&
         std::memcmp(x->data(), y->data(), x->nbytes()) == 0;
}

}  // namespace

// Integers carry no gradient, so QuantizeLinear and DequantizeLinear in sequence become one
// operator of Steep that does.
Bindings upgrade_dequantize_linear(const Call& c) {
  const Value x = c.need(0), scale = c.need(1);
  const Node q = x.producer();
  const bool fake = q && q.op() == "QuantizeLinear" && same(q.input(1), scale) &&
                    same(q.input(2), c.in(2)) && integer_of(q, "axis") == c.integer("axis") &&
                    integer_of(q, "block_size") == c.integer("block_size");
  if (!fake) return c.as_is();
  Attrs attrs = q.attrs();
  const auto dtype = c.integer("output_dtype");
  attrs.set("output_dtype", static_cast<int64_t>(x.dtype()));
  attrs.set("dtype", dtype != 0 ? dtype : static_cast<int64_t>(scale.dtype()));
  return {c.emit1("steep.FakeQuantize", {q.input(0), scale, c.in(2)}, attrs)};
}

}  // namespace steep
