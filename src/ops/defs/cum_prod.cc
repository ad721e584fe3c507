// Running products along one axis. Their gradient takes time linear in the number of elements, also
// with zeros: dx[k] = (product before k) s[k], where s[k] = Σ_{i ≥ k} dy[i] (product between k and
// i) obeys s[k] = dy[k] + x[k+1] s[k+1].
#include "ops/build.h"
#include "ops/defs/loop.h"
#include "ops/parts.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

/// x[k - by] at index k, 0 where that is out of range. `by` is 1 or -1.
Value shifted(Value x, int64_t axis, int64_t by) {
  return apply("Pad", {x, ints(x.graph(), {by, -by}), Value(), ints(x.graph(), {axis})});
}

Value recurrence(Value a, Value b, int64_t axis, bool reverse) {
  return apply("steep.Recurrence", {a, b}, {{"axis", axis}, {"reverse", int64_t{reverse}}});
}

int64_t axis_of(Node n) {
  const Tensor* axis = constant(n.input(1));
  if (axis == nullptr || axis->size() != 1) {
    throw ModelError(
        {.what = "A CumProd node needs a constant axis to be differentiated or exported.",
         .node = n.name(),
         .op = n.op(),
         .expected = "a constant axis",
         .received = to_string(n.input(1).type()),
         .remedy = "Make the axis a constant of the model."});
  }
  return normal_axis(n, axis->to_ints()[0], n.input(0).rank());
}

Grads cum_prod_vjp(Node n, const Grads& dy) {
  Value x = n.input(0);
  const int64_t axis = axis_of(n);
  const bool reverse = integer_of(n, "reverse") != 0;
  const bool exclusive = integer_of(n, "exclusive") != 0;
  const int64_t back = reverse ? 1 : -1;  // shifts the next element here
  Attrs before = n.attrs();
  before.set("exclusive", int64_t{1});
  Value a = exclusive ? shifted(dy[0], axis, back) : dy[0];
  return {apply("CumProd", {x, n.input(1)}, before) *
          recurrence(a, shifted(x, axis, back), axis, !reverse)};
}

/// The gradient of a is a recurrence in the other direction, with the factors shifted by one
/// element.
Grads recurrence_vjp(Node n, const Grads& dy) {
  const int64_t axis = integer_of(n, "axis");
  const bool reverse = integer_of(n, "reverse") != 0;
  Value da = recurrence(dy[0], shifted(n.input(1), axis, reverse ? 1 : -1), axis, !reverse);
  return {da, da * shifted(n.output(0), axis, reverse ? -1 : 1)};
}

/// A tensor filled with `value`, with the shape of x without `axis`.
Value fill_slice(Value x, int64_t axis, double value) {
  Ints others;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != axis) others.push_back(i);
  }
  const Value one = scalar(x.graph(), value, x.dtype());
  if (others.empty()) return one;
  return apply("Expand", {one, apply("Gather", {shape_of(x), ints(x.graph(), others)})});
}

std::vector<Type> recurrence_infer(Node n) {
  require_operands(n, 2, 1);
  const Value a = n.input(0), b = n.input(1);
  const bool numbers = a && b && is_float(a.dtype()) && a.dtype() == b.dtype();
  if (!numbers) {
    throw_shape_error(n, "The operands of a recurrence are not of one float type.",
                      "two tensors of one float type", a ? to_string(a.type()) : "nothing");
  }
  const auto &of_a = shape_if_known(a), &of_b = shape_if_known(b);
  const int64_t axis = integer_of(n, "axis");
  if (of_a && (axis < 0 || axis >= a.rank())) {
    throw_shape_error(n, "The axis is out of range.", "one of the operand's", std::to_string(axis));
  }
  bool fit = !of_a || !of_b || of_a->size() == of_b->size();
  for (size_t i = 0; fit && of_a && of_b && i < of_a->size(); ++i) {
    const Dim &d = (*of_a)[i], &e = (*of_b)[i];
    fit = !d.known() || !e.known() || d.value() == e.value();
  }
  if (!fit) {
    throw_shape_error(n, "The operands of a recurrence are of different shapes.", to_string(of_a),
                      to_string(of_b));
  }
  return {a.type()};
}

std::vector<Type> products_infer(Node n) {
  require_operands(n, 1, 1);
  const Value x = n.input(0);
  if (!x || x.type().kind != Kind::tensor || x.dtype() == DType::boolean) {
    throw_shape_error(n, "An input of a numeric operator is not numeric.", "a tensor of numbers",
                      x ? to_string(x.type()) : "nothing");
  }
  if (x.type().shape) normal_axis(n, integer_of(n, "axis"), x.rank());
  return {x.type()};
}

std::vector<Value> products_decompose(Node n) {
  return {
      apply("CumProd", {n.input(0), ints(n.graph(), {integer_of(n, "axis")})},
            {{"exclusive", integer_of(n, "exclusive")}, {"reverse", integer_of(n, "reverse")}})};
}

std::vector<Value> recurrence_in_parts(Node n) {
  const Value a = n.input(0), b = n.input(1);
  const int64_t axis = integer_of(n, "axis");
  const auto body = std::make_shared<Graph>();
  const Type slice = slice_in_body(a, axis, "slice");
  const Value iteration = body->add_input("iteration", {DType::i64, Shape{}});
  const Value s = body->add_input("s", slice);
  const Value addend = body->add_input("a", slice), factor = body->add_input("b", slice);
  const Value first = apply("Equal", {iteration, scalar(*body, 0, DType::i64)});
  const Value next = where(first, addend, addend + factor * s);
  body->add_output("s", next);
  body->add_output("all", next);
  const Value y = add_loop(n.graph(), {.body = body,
                                       .carried = {fill_slice(a, axis, 0)},
                                       .scanned = {a, b},
                                       .in_axes = {axis, axis},
                                       .out_axes = {axis},
                                       .from_the_end = integer_of(n, "reverse") != 0})[1];
  return {reshape_like(y, a)};  // zero iterations leave the extents of a slice unknown
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
                               .export_decomposition = cum_prod_in_parts};

/// steep.Recurrence(a, b){axis, reverse}: s[k] = a[k] + b[k] s[k-1] along `axis` (counted from the
/// front), or with s[k+1] if `reverse`. The first s is a's element: its factor, which may be
/// infinite, counts for nothing.
extern const OpDef kSteepRecurrence = {.name = "steep.Recurrence",
                                       .in_files = true,
                                       .attributes = {{"axis", 0}, {"reverse", 0}},
                                       .vjp = recurrence_vjp,
                                       .infer = recurrence_infer,
                                       .export_decomposition = recurrence_in_parts};

/// steep.CumProd(x){axis, exclusive, reverse}: ONNX's CumProd, which exists only from opset 26 on.
extern const OpDef kSteepCumProd = {.name = "steep.CumProd",
                                    .in_files = true,
                                    .attributes = {{"axis", 0}, {"exclusive", 0}, {"reverse", 0}},
                                    .infer = products_infer,
                                    .decompose = products_decompose};

}  // namespace steep
