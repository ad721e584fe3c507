// Running products along one axis. Their gradient is linear in the number of elements, zeros
// included: dx[k] = (product before k) s[k], where s[k] = Σ_{i ≥ k} dy[i] (product between k and i)
// obeys s[k] = dy[k] + x[k+1] s[k+1].
#include "ops/build.h"
#include "ops/defs/loop.h"
#include "ops/parts.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

/// x[k - by] at k, 0 where there is none. `by` is 1 or -1.
Value shifted(Value x, int64_t axis, int64_t by) {
  return apply("Pad", {x, ints(x.graph(), {by, -by}), Value(), ints(x.graph(), {axis})});
}

Value recurrence(Value a, Value b, int64_t axis, bool reverse) {
  return apply("steep.Recurrence", {a, b}, {{"axis", axis}, {"reverse", int64_t{reverse}}});
}

int64_t axis_of(Node n) {
  const Tensor* given = constant(n.input(1));
  if (given == nullptr || given->size() != 1) {
    throw ModelError(
        {.what = "A CumProd node needs a constant axis to be differentiated or exported.",
         .node = n.name(),
         .op = n.op(),
         .expected = "a constant axis",
         .received = to_string(n.input(1).type()),
         .remedy = "Make the axis a constant of the model."});
  }
  return normal_axis(n, given->to_ints()[0], n.input(0).rank());
}

Grads cum_prod_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const int64_t axis = axis_of(n);
  const bool reverse = integer_of(n, "reverse") != 0;
  const bool exclusive = integer_of(n, "exclusive") != 0;
  const int64_t back = reverse ? 1 : -1;  // brings the next element here
  Attrs before = n.attrs();
  before.set("exclusive", int64_t{1});
  Value a = exclusive ? shifted(dy[0], axis, back) : dy[0];
  return {apply("CumProd", {x, n.input(1)}, before) *
          recurrence(a, shifted(x, axis, back), axis, !reverse)};
}

/// The gradient of a runs the other way, with the factors that led from each element to the next.
Grads recurrence_vjp(Node n, const Grads& dy) {
  const int64_t axis = integer_of(n, "axis");
  const bool reverse = integer_of(n, "reverse") != 0;
  Value da = recurrence(dy[0], shifted(n.input(1), axis, reverse ? 1 : -1), axis, !reverse);
  return {da, da * shifted(n.output(0), axis, reverse ? -1 : 1)};
}

/// `value` in the shape of x without `axis`.
Value fill_slice(Value x, int64_t axis, double value) {
  Ints others;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != axis) others.push_back(i);
  }
  const Value one = scalar(x.graph(), value, x.dtype());
  if (others.empty()) return one;
  return apply("Expand", {one, apply("Gather", {shape_of(x), ints(x.graph(), others)})});
}

std::vector<Type> recurrence_infer(Node n) { return {n.input(0).type()}; }

std::vector<Value> recurrence_in_parts(Node n) {
  const Value a = n.input(0), b = n.input(1);
  const int64_t axis = integer_of(n, "axis");
  const auto body = std::make_shared<Graph>();
  const Type slice = slice_in_body(a, axis, "slice");
  body->add_input("iteration", {DType::i64, Shape{}});
  const Value s = body->add_input("s", slice);
  const Value added = body->add_input("a", slice), factor = body->add_input("b", slice);
  const Value next = added + factor * s;
  body->add_output("s", next);
  body->add_output("all", next);
  const Value y = add_loop(n.graph(), {.body = body,
                                       .carried = {fill_slice(a, axis, 0)},
                                       .scanned = {a, b},
                                       .in_axes = {axis, axis},
                                       .out_axes = {axis},
                                       .from_the_end = integer_of(n, "reverse") != 0})[1];
  return {reshape_like(y, a)};  // without a step the extents of a slice are not seen
}

std::vector<Value> cum_prod_in_parts(Node n) {
  const Value x = n.input(0);
  const int64_t axis = axis_of(n);
  const auto body = std::make_shared<Graph>();
  const Type slice = slice_in_body(x, axis, "slice");
  body->add_input("iteration", {DType::i64, Shape{}});
  const Value before = body->add_input("product", slice), factor = body->add_input("x", slice);
  const Value after = before * factor;
  body->add_output("product", after);
  body->add_output("all", integer_of(n, "exclusive") != 0 ? before : after);
  const Value y = add_loop(n.graph(), {.body = body,
                                       .carried = {fill_slice(x, axis, 1)},
                                       .scanned = {x},
                                       .in_axes = {axis},
                                       .out_axes = {axis},
                                       .from_the_end = integer_of(n, "reverse") != 0})[1];
  return {reshape_like(y, x)};
}

}  // namespace

extern const OpDef kCumProd = {.name = "CumProd",
                               .attributes = {{"exclusive", 0}, {"reverse", 0}},
                               .ranks = ". e",
                               .vjp = cum_prod_vjp,
                               .in_parts = cum_prod_in_parts};

/// steep.Recurrence(a, b){axis, reverse}: s[k] = a[k] + b[k] s[k-1] along `axis` (counted from the
/// front), or s[k+1] with `reverse`; what lies before the first is 0.
extern const OpDef kSteepRecurrence = {.name = "steep.Recurrence",
                                       .attributes = {{"axis", 0}, {"reverse", 0}},
                                       .vjp = recurrence_vjp,
                                       .infer = recurrence_infer,
                                       .in_parts = recurrence_in_parts};

}  // namespace steep
