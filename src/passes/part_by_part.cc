// Makes or divides a large array a part at a time, so that not all parts exist beside the whole:
//
//   y = Concat(a, b)     →   y = SetPart(SetPart(zeros, a), b), in place, once each part is there
//   a, b = Split(y)      →   a = Slice(y), b = Slice(y), each before the first reader
//
// Examples are the scores of a vocabulary whose table is in parts, and their gradient. The results
// have the same bits. A loss over such scores needs no whole at all (loss_by_part.cc).
#include "passes/part_by_part.h"

#include <algorithm>

#include "ops/build.h"
#include "ops/parts_in_place.h"
#include "passes/pipeline.h"

namespace steep {

bool frees_parts(Node concat, const Readers& readers) {
  for (int i = 0; i < concat.input_count(); ++i) {
    const Node maker = concat.input(i).producer();
    if (!maker || maker.phase() != concat.phase() || !readers.only(concat.input(i))) return false;
  }
  return concat.input_count() > 1;
}

Node ReadersInOrder::first_of(Value v) const {
  Node first;
  for (Node n : readers.of(v)) {
    if (!first || position[n.id()] < position[first.id()]) first = n;
  }
  return first;
}

namespace {

int64_t axis_of(Node n, Value whole) { return normal_axis(n, integer_of(n, "axis"), whole.rank()); }

bool assemble(const Match& m, const Readers& readers) {
  const Value y = m["whole"];
  const Node concat = m.node("whole");
  if (y.type().nbytes() < kLeastBytesInParts || !frees_parts(concat, readers)) return false;
  Graph& g = concat.graph();
  const Graph::Scope scope(g, concat.phase(), concat.name());
  const int64_t axis = axis_of(concat, y);
  Value whole = apply("ConstantOfShape", {ints(g, y.type().dims())},
                      {{"value", Tensor::zeros(y.dtype(), {1})}});
  g.place_like(whole.producer(), concat.input(0).producer());
  int64_t start = 0;
  for (int i = 0; i < concat.input_count(); ++i) {
    const Value part = concat.input(i);
    whole = apply("steep.SetPart", {whole, part}, {{"axis", axis}, {"start", start}});
    g.place_like(whole.producer(), part.producer());
    start += part.type().dims()[static_cast<size_t>(axis)];
  }
  g.replace_uses(y, whole);
  return true;
}

bool divide(const Match& m, const ReadersInOrder& order) {
  const Value y = m["whole"];
  const Node split = m.node("part");
  const int64_t axis = axis_of(split, y);
  if (y.type().nbytes() < kLeastBytesInParts || contiguous_bytes(y, axis)) return false;
  Graph& g = split.graph();
  for (int i = 0; i < split.output_count(); ++i) {
    if (!split.output(i) || g.is_output(split.output(i))) return false;
  }
  const Graph::Scope scope(g, split.phase(), split.name());
  int64_t start = 0;
  for (int i = 0; i < split.output_count(); ++i) {
    const Value part = split.output(i);
    const int64_t end = start + part.type().dims()[static_cast<size_t>(axis)];
    if (const Node reader = order.first_of(part)) {
      const Value slice = apply("Slice", {y, ints(g, {start}), ints(g, {end}), ints(g, {axis})});
      g.place_like(slice.producer(), reader);
      g.replace_uses(part, slice);
    }
    start = end;
  }
  return true;
}

constexpr PatternRule<const ReadersInOrder&> kLossRules[] = {
    {.name = "part_by_part/loss",
     .reason = "The loss over scores in parts needs one part at a time, and so does its gradient.",
     .pattern = "loss: steep.SoftmaxCrossEntropy(logits, labels)",
     .then = take_loss_by_part}};

constexpr PatternRule<const ReadersInOrder&> kRules[] = {
    {.name = "part_by_part/concat",
     .reason = "All parts of a large array and the array itself need twice its memory.",
     .pattern = "whole: Concat(...)",
     .then = [](const Match& m, const ReadersInOrder& o) { return assemble(m, o.readers); }},
    {.name = "part_by_part/split",
     .reason = "A part of a large array is needed when it is read, and not before.",
     .pattern = "part: Split(whole, ...)",
     .then = divide}};

template <size_t kCount>
void apply_to_all(const PatternRule<const ReadersInOrder&> (&rules)[kCount], Graph& g) {
  const Readers readers(g);
  const std::vector<Node> order = g.nodes();
  std::vector<size_t> position(g.node_slots(), 0);
  for (size_t i = 0; i < order.size(); ++i) position[order[i].id()] = i;
  for (Node n : order) apply_rules(rules, n, Match(), ReadersInOrder{readers, position});
}

}  // namespace

void part_by_part(Graph& g) {
  apply_to_all(kLossRules, g);
  g.prune();
  apply_to_all(kRules, g);
}

std::vector<PatternRuleInfo> part_by_part_patterns() { return list_rules(kLossRules, kRules); }

}  // namespace steep
