// Running products along one axis. Their gradient is linear in the number of elements, zeros
// included: dx[k] = (product before k) s[k], where s[k] = Σ_{i ≥ k} dy[i] (product between k and i)
// obeys s[k] = dy[k] + x[k+1] s[k+1].
#include "ops/build.h"
#include "ops/own_types.h"
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

Grads cum_prod_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const Tensor* given = constant(n.input(1));
  if (given == nullptr || given->size() != 1) {
    throw ModelError({.what = "The gradient of a running product needs to know its axis.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "a constant axis",
                      .received = to_string(n.input(1).type()),
                      .remedy = "Make the axis a constant of the model."});
  }
  const int64_t axis = normal_axis(n, given->to_ints()[0], x.rank());
  const bool reverse = n.attrs().integer("reverse", 0) != 0;
  const bool exclusive = n.attrs().integer("exclusive", 0) != 0;
  const int64_t back = reverse ? 1 : -1;  // brings the next element here
  Attrs before = n.attrs();
  before.set("exclusive", int64_t{1});
  Value a = exclusive ? shifted(dy[0], axis, back) : dy[0];
  return {apply("CumProd", {x, n.input(1)}, before) *
          recurrence(a, shifted(x, axis, back), axis, !reverse)};
}

/// The gradient of a runs the other way, with the factors that led from each element to the next.
Grads recurrence_vjp(Node n, const Grads& dy) {
  const int64_t axis = n.attrs().integer("axis", 0);
  const bool reverse = n.attrs().integer("reverse", 0) != 0;
  Value da = recurrence(dy[0], shifted(n.input(1), axis, reverse ? 1 : -1), axis, !reverse);
  return {da, da * shifted(n.output(0), axis, reverse ? -1 : 1)};
}

std::vector<Type> recurrence_infer(Node n) { return {n.input(0).type()}; }

}  // namespace

extern const OpDef kCumProd = {.name = "CumProd", .vjp = cum_prod_vjp};

/// steep.Recurrence(a, b){axis, reverse}: s[k] = a[k] + b[k] s[k-1] along `axis` (counted from the
/// front), or s[k+1] with `reverse`; what lies before the first is 0.
extern const OpDef kSteepRecurrence = {
    .name = "steep.Recurrence", .vjp = recurrence_vjp, .infer = recurrence_infer};

}  // namespace steep
