#include "ops/defs/losses.h"

namespace steep {

LabelRows label_rows(Node n, Value labels, Value class_weights, DType dtype) {
  Graph& g = n.graph();
  LabelRows rows{Value(), labels, Value()};
  if (n.attrs().has("ignore_index")) {
    const auto ignore_index = static_cast<double>(n.attrs().integer("ignore_index", 0));
    rows.counts = apply("Not", {equal(labels, ignore_index)});
    rows.labels = where(rows.counts, labels, 0);
    rows.weights = cast(rows.counts, dtype);
  }
  if (class_weights) {
    Value weights = apply("Gather", {class_weights, rows.labels});
    rows.weights = rows.counts ? where(rows.counts, weights, scalar(g, 0, dtype)) : weights;
  }
  return rows;
}

Value pick(Value scores, Value labels) {
  return apply("GatherElements", {scores, unsqueeze(labels, {1})}, {{"axis", int64_t{1}}});
}

Value is_label(Value scores, Value labels) {
  Graph& g = scores.graph();
  // Use a constant where the number of classes is known: a plan decomposes ops that have no kernel,
  // but does not fold constants afterwards.
  const auto& shape = scores.type().shape;
  Value classes = shape && shape->at(1).known()
                      ? ints(g, {shape->at(1).value()})
                      : apply("Shape", {scores}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  return cast(apply("OneHot", {labels, classes, ints(g, {0, 1})}), DType::boolean);
}

Value labels_of_part(Node n, Value scores, LabelRows* rows) {
  if (!n.attrs().has("first")) return {};
  const Value at = rows->labels - static_cast<double>(n.attrs().integer("first"));
  const auto classes = static_cast<double>(scores.type().dims()[1]);
  const Value inside =
      apply("And", {less_or_equal(scalar(at.graph(), 0, at.dtype()), at), less(at, classes)});
  rows->labels = where(inside, at, 0);
  return inside;
}

Value reduce_losses(Node n, Value losses, Value weights) {
  const std::string reduction = text_of(n, "reduction");
  if (reduction == "none") return losses;
  if (reduction == "sum") return sum(losses, {}, false);
  return weights ? sum(losses, {}, false) / sum(weights, {}, false) : mean(losses, {}, false);
}

Value classes_last(Value scores) {
  const int64_t rank = scores.rank();
  if (rank == 2) return scores;
  Ints perm{0};
  for (int64_t i = 2; i < rank; ++i) perm.push_back(i);
  perm.push_back(1);
  return apply("Flatten", {transpose(scores, perm)}, {{"axis", rank - 1}});
}

}  // namespace steep
