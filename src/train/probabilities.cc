#include "train/probabilities.h"

#include <algorithm>

#include "ops/op_def.h"

namespace steep {
namespace {

/// Nodes that move, cast or bound x; views are not among them.
constexpr PatternRule<Value&> kMoves[] = {
    {.name = "loss/moved",
     .reason = "Files move and cast what a loss reads, and keep it within bounds.",
     .pattern = "Transpose|Cast|Clip|Identity(x, ...)",
     .then =
         [](const Match& m, Value& before) {
           before = m["x"];
           return true;
         }},
    {.name = "loss/bounded",
     .reason = "A bound may be a Max or a Min with a constant.",
     .pattern = "Max|Min{x, bound}",
     .then =
         [](const Match& m, Value& before) {
           before = m["x"];
           return m["bound"].role() == Role::constant;
         }},
};

}  // namespace

Value before_moves(Value v) {
  for (;;) {
    const Node n = v.producer();
    const OpDef* def = n ? find_op(n.op()) : nullptr;
    Value before;
    if (def != nullptr && def->view) {
      before = n.input(0);
    } else if (apply_rules(kMoves, n, Match(), before) == nullptr) {
      return v;
    }
    v = before;
  }
}

namespace {

/// Whether a is computed as 1 - b.
bool complement(Value a, Value b) {
  static constexpr Pattern kComplement("Sub(one, p)");
  const auto m = match(kComplement, before_moves(a).producer());
  return m && (*m)["one"].role() == Role::constant && before_moves((*m)["p"]) == before_moves(b);
}

/// A value before moves, and the values that it is the sum of: files add what keeps a divisor from
/// 0.
std::vector<Value> summands(Value v) {
  std::vector<Value> values{before_moves(v)};
  if (const Node n = values[0].producer(); n && n.op() == "Add")
    values.insert(values.end(), {before_moves(n.input(0)), before_moves(n.input(1))});
  return values;
}

/// Whether `total` is the sum over elements of `x`.
bool is_total(Value total, Value x) {
  static constexpr Pattern kTotal("ReduceSum|ReduceL1(x, ...)");
  const auto m = match(kTotal, total.producer());
  const std::vector<Value> parts = summands(x);
  return m && std::find(parts.begin(), parts.end(), before_moves((*m)["x"])) != parts.end();
}

/// Operators other than the loss's own that give probabilities: numbers from 0 to 1 that sum to 1.
constexpr PatternRule<> kProbabilities[] = {
    {.name = "loss/probabilities",
     .reason = "A loss of scores must not be attached to what an operator made of them.",
     .pattern = "Softmax|Sigmoid(_)"},
    {.name = "loss/logistic",
     .reason = "Files write a Sigmoid out.",
     .pattern = "Reciprocal(Add{1, Exp(_)})"},
    {.name = "loss/logistic_quotient",
     .reason = "Files write a Sigmoid out.",
     .pattern = "Div(1, Add{1, Exp(_)})"},
    {.name = "loss/complements",
     .reason = "Classifiers of two classes join p and 1 - p.",
     .pattern = "Concat(a, b)",
     .then =
         [](const Match& m) { return complement(m["a"], m["b"]) || complement(m["b"], m["a"]); }},
    {.name = "loss/shares",
     .reason = "Some classifiers divide by the sum over the classes.",
     .pattern = "Div(x, total)",
     .then =
         [](const Match& m) {
           const std::vector<Value> totals = summands(m["total"]);
           return std::ranges::any_of(totals, [&](Value v) { return is_total(v, m["x"]); });
         }},
    {.name = "loss/normalized",
     .reason = "LpNormalization with p = 1 divides by the sum over the classes.",
     .pattern = "normalized: LpNormalization(x)",
     .then = [](const Match& m) { return integer_of(m.node("normalized"), "p") == 1; }},
    {.name = "loss/exponentials",
     .reason = "Models that are trained on log-probabilities return their exponentials.",
     .pattern = "Exp(x)",
     .then =
         [](const Match& m) {
           static constexpr Pattern kLogs("LogSoftmax(_)");
           return match(kLogs, before_moves(m["x"]).producer()).has_value();
         }},
};

/// What computes v, before nodes that move it or scale it by constants; null if there is none.
Node before_scales(Value v) {
  for (;;) {
    v = before_moves(v);
    const Node n = v.producer();
    if (!n || (n.op() != "Mul" && n.op() != "Div")) return n;
    const bool second = n.input(1).role() == Role::constant;
    if (!second && (n.op() == "Div" || n.input(0).role() != Role::constant)) return n;
    v = n.input(second ? 0 : 1);
  }
}

}  // namespace

bool holds_probabilities(Value y) {
  const Node last = before_moves(y).producer();
  if (last && apply_rules(kProbabilities, last, Match()) != nullptr) return true;
  constexpr size_t kMost = 64;  // hostile files must not cost much time
  std::vector<Node> nodes{before_scales(y)};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const Node n = nodes[i];
    if (i > 0 && n && apply_rules(kProbabilities, n, Match()) != nullptr) continue;
    if (!n || nodes.size() > kMost || n.input_count() > static_cast<int>(kMost) ||
        (n.op() != "Add" && n.op() != "Sum" && n.op() != "Mean"))
      return false;
    for (int k = 0; k < n.input_count(); ++k) {
      const Node part = before_scales(n.input(k));
      if (std::find(nodes.begin(), nodes.end(), part) == nodes.end()) nodes.push_back(part);
    }
  }
  return true;
}

std::vector<PatternRuleInfo> probability_patterns() { return list_rules(kMoves, kProbabilities); }

}  // namespace steep
