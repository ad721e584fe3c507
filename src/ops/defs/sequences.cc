// Sequences of tensors. The gradient of a sequence is the sequence of its items' gradients.
//
//   steep.SequenceExtents(s){axis}  int64[n]: extent of each item along an axis
//   steep.ZerosLike(x)              zeros for every tensor in a sequence or optional
//   steep.SumOf(a, b)               sum of two sequences or optionals, item by item
#include "ops/build.h"
#include "ops/defs/loop.h"
#include "ops/steep_types.h"

namespace steep {
namespace {

Value at(Value sequence, Value position) { return apply("SequenceAt", {sequence, position}); }

Value last(Value sequence) { return scalar(sequence.graph(), -1, DType::i64); }

Grads construct_vjp(Node n, const Grads& dy) {
  Grads dx;
  for (int i = 0; i < n.input_count(); ++i)
    dx.push_back(at(dy[0], scalar(n.graph(), i, DType::i64)));
  return dx;
}

Grads at_vjp(Node n, const Grads& dy) {
  // The gradient: zeros, with the item at that position replaced by dy.
  const Value s = n.input(0);
  const Value length = apply("SequenceLength", {s});
  Value position = cast(n.input(1), DType::i64);
  position = where(less(position, 0), position + length, position);
  const Value others = apply("SequenceErase", {zeros_like(s), position});
  return {apply("SequenceInsert", {others, dy[0], position})};
}

/// The position of the inserted item in the longer sequence.
Value inserted_at(Node n) {
  if (!n.input(2)) return last(n.output(0));
  const Value position = cast(n.input(2), DType::i64);
  return where(less(position, 0), position + apply("SequenceLength", {n.input(0)}) + 1, position);
}

Grads insert_vjp(Node n, const Grads& dy) {
  const Value position = inserted_at(n);
  return {apply("SequenceErase", {dy[0], position}), at(dy[0], position)};
}

Grads erase_vjp(Node n, const Grads& dy) {
  const Value s = n.input(0);
  Value position = n.input(1) ? cast(n.input(1), DType::i64) : last(s);
  position = where(less(position, 0), position + apply("SequenceLength", {s}), position);
  return {apply("SequenceInsert", {dy[0], zeros_like(at(s, position)), position})};
}

Grads split_vjp(Node n, const Grads& dy) {
  const bool dropped = !n.input(1) && integer_of(n, "keepdims") == 0;
  const Attrs attrs{{"axis", integer_of(n, "axis")}, {"new_axis", int64_t{dropped}}};
  // If the axis is empty there is nothing to concatenate: the result has the shape of x.
  return {apply("ConcatFromSequence", {dy[0]}, attrs)};
}

Grads concat_vjp(Node n, const Grads& dy) {
  const Attrs axis{{"axis", integer_of(n, "axis")}};
  if (integer_of(n, "new_axis") != 0) {
    Attrs attrs = axis;
    attrs.set("keepdims", int64_t{0});
    return {apply("SplitToSequence", {dy[0]}, attrs)};
  }
  const Value sizes = apply("steep.SequenceExtents", {n.input(0)}, axis);
  return {apply("SplitToSequence", {dy[0], sizes}, axis)};
}

std::vector<Type> same_infer(Node n) { return {n.input(0).type()}; }

std::vector<Type> extents_infer(Node n) {
  static_cast<void>(n);
  return {{DType::i64, Shape{Dim()}}};
}

std::vector<Type> insert_infer(Node n) {
  Type item = n.input(1).type();
  item.kind = Kind::sequence;
  // An empty sequence says nothing about the shape of items: use the type of the inserted item.
  const Node producer = n.input(0).producer();
  if (producer && producer.op() == "SequenceEmpty") return {item};
  return {either(n.input(0).type(), item)};
}

std::vector<Type> construct_infer(Node n) {
  Type type = n.input(0).type();
  type.kind = Kind::sequence;
  for (int i = 1; i < n.input_count(); ++i) {
    Type item = n.input(i).type();
    item.kind = Kind::sequence;
    type = either(type, item);
  }
  return {type};
}

Grads sum_vjp(Node n, const Grads& dy) {
  static_cast<void>(n);
  return {dy[0], dy[0]};
}

/// The sequence of the results of `f`, applied to the items at each position of n's inputs.
template <typename F>
std::vector<Value> for_items(Node n, F f) {
  Graph body;
  body.add_input("iteration", {DType::i64, Shape{}});
  NewLoop loop{
      .in_axes = Ints(static_cast<size_t>(n.input_count()), 0), .out_axes = {0}, .sequences = true};
  std::vector<Value> items;
  for (int i = 0; i < n.input_count(); ++i) {
    const Value s = n.input(i);
    if (s.type().kind != Kind::sequence) return {};
    loop.scanned.push_back(s);
    items.push_back(body.add_input(s.name(), {s.dtype(), s.type().shape}));
  }
  const Value y = f(items);
  body.add_output(y.name(), y);
  loop.body = std::make_shared<Graph>(std::move(body));
  return add_loop(n.graph(), loop);
}

std::vector<Value> zeros_like_in_parts(Node n) {
  return for_items(n, [](const std::vector<Value>& items) { return zeros_like(items[0]); });
}

std::vector<Value> sum_of_in_parts(Node n) {
  return for_items(n, [](const std::vector<Value>& items) { return items[0] + items[1]; });
}

std::vector<Value> extents_in_parts(Node n) {
  const std::vector<Value> extents = for_items(n, [&](const std::vector<Value>& items) {
    const Value axis = ints(items[0].graph(), {integer_of(n, "axis")});
    return apply("Gather", {shape_of(items[0]), axis});
  });
  if (extents.empty()) return {};
  return {apply("ConcatFromSequence", {extents[0]}, {{"axis", int64_t{0}}})};
}

}  // namespace

extern const OpDef kSequenceConstruct = {
    .name = "SequenceConstruct", .dynamic = true, .vjp = construct_vjp, .infer = construct_infer};
extern const OpDef kSequenceEmpty = {
    .name = "SequenceEmpty", .stops_gradient = true, .dynamic = true};
extern const OpDef kSequenceLength = {
    .name = "SequenceLength", .stops_gradient = true, .dynamic = true};
extern const OpDef kSequenceAt = {
    .name = "SequenceAt", .ranks = ". e", .dynamic = true, .vjp = at_vjp};
extern const OpDef kSequenceInsert = {.name = "SequenceInsert",
                                      .ranks = ". . e",
                                      .dynamic = true,
                                      .vjp = insert_vjp,
                                      .infer = insert_infer};
extern const OpDef kSequenceErase = {.name = "SequenceErase",
                                     .ranks = ". e",
                                     .dynamic = true,
                                     .vjp = erase_vjp,
                                     .infer = same_infer};
extern const OpDef kSplitToSequence = {.name = "SplitToSequence",
                                       .attributes = {{"axis", 0}, {"keepdims", 1}},
                                       .dynamic = true,
                                       .vjp = split_vjp};
extern const OpDef kConcatFromSequence = {.name = "ConcatFromSequence",
                                          .attributes = {{"axis", 0}, {"new_axis", 0}},
                                          .dynamic = true,
                                          .vjp = concat_vjp};
extern const OpDef kSteepSequenceExtents = {.name = "steep.SequenceExtents",
                                            .attributes = {{"axis", 0}},
                                            .stops_gradient = true,
                                            .dynamic = true,
                                            .infer = extents_infer,
                                            .export_decomposition = extents_in_parts};
extern const OpDef kSteepZerosLike = {.name = "steep.ZerosLike",
                                      .stops_gradient = true,
                                      .dataless = true,
                                      .dynamic = true,
                                      .infer = same_infer,
                                      .export_decomposition = zeros_like_in_parts};
extern const OpDef kSteepSumOf = {.name = "steep.SumOf",
                                  .dynamic = true,
                                  .vjp = sum_vjp,
                                  .infer = same_infer,
                                  .export_decomposition = sum_of_in_parts};

}  // namespace steep
