#include "autodiff/read_rows.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "autodiff/read_queries.h"
#include "autodiff/real_rows.h"
#include "autodiff/row_wise.h"
#include "ir/seed.h"
#include "ops/build.h"
#include "runtime/logs.h"

namespace steep {
namespace {

constexpr size_t kMostOfLabels = 64;  // nodes that make labels of inputs
constexpr size_t kMostOfRows = 4096;  // those of masks, which each attention may make for itself

/// Rewrites nodes so that they compute only some rows. Values that other nodes read too (scores
/// that a model returns) are computed twice, from the last product on: for some rows and for all
/// rows. If all rows count, the two are equal and can be merged.
class RowRewriter {
 public:
  /// `from`: the value of which only `reader` reads rows. `readers`: the readers in the unchanged
  /// graph. `cut`: the tokens that the reader takes, if it takes the same tokens of each sequence.
  RowRewriter(Graph& graph, const Readers& readers, Value from, Node reader,
              std::optional<TokenCut> cut = {})
      : graph_(graph), from_(from), cut_(cut) {
    if (cut_) attentions_ = find_read_queries(graph, readers, *cut_);
    std::unordered_set<uint32_t> ids{from.id()};
    inside_.insert(reader.id());
    bool cut_again = false;
    const std::vector<Node> nodes = graph.nodes();
    for (auto it = nodes.rbegin(); it != nodes.rend(); ++it) {
      const Node n = *it;
      const Value y = n.output(0);
      if (!y || ids.count(y.id()) == 0) continue;
      if (!cut_again && attentions_.count(y.id()) != 0) {
        const Value source = enter_attention(y, readers);
        if (source) ids.insert(source.id());
        continue;
      }
      const auto operands = by_rows(n);
      if (!operands || !may_be_written(n, readers)) continue;
      inside_.insert(n.id());
      cut_again = cut_again || cut_axes(n);  // rows have other numbers before the cut
      products_ += is_product(n) ? 1 : 0;
      if (is_product(n) && computed_twice_.count(n.id()) != 0) continue;
      for (size_t i = 0; i < operands->size(); ++i) {
        if ((*operands)[i] == RowOperand::rows) ids.insert(n.input(static_cast<int>(i)).id());
      }
    }
  }

  size_t products() const { return products_; }
  bool any_computed_twice() const { return !computed_twice_.empty(); }

  /// To be called after the reader reads the selected rows: gives the other readers of shared
  /// values all rows again.
  void restore_shared_values() {
    for (const Value v : shared_) {
      const Value shape = concat({leads(v), ints(graph_, {v.shape().back().value()})}, 0);
      const Value all = take(v, Value());
      graph_.replace_uses(v, v.rank() == 2 ? all : reshape(all, shape));
    }
  }

  /// The extents d… of v [d…, k], computed without the rewritten nodes.
  Value leads(Value v) {
    const Node n = v.producer();
    if (const ReadQueries* a = attention_of(v))
      return leads_of_result(*a, *cut_, a->source ? leads(a->source) : Value());
    const bool inside = n && inside_.count(n.id()) != 0;
    if (inside && n.op() == "Identity") return leads(n.input(0));
    if (inside && keeps_rows(n) && v.rank() == 2)
      return apply("ReduceProd", {leads(n.input(0))}, {{"keepdims", int64_t{1}}});
    if (inside && !keeps_rows(n)) {
      if (cut_axes(n)) return shape_of(numbers_taken(n));
      const auto operands = by_rows(n);
      for (int i = 0; i < n.input_count(); ++i) {
        if (operands->at(static_cast<size_t>(i)) == RowOperand::rows) return leads(n.input(i));
      }
    }
    return apply("Shape", {v}, {{"start", int64_t{0}}, {"end", v.rank() - 1}});
  }

  /// The row numbers of v [d…, k], int64[d…]: constant once shapes are known.
  Value numbers(Value v) {
    const Value shape = leads(v);
    const Value rows = apply("ReduceProd", {shape}, {{"keepdims", int64_t{0}}});
    return reshape(apply("Range", {number(0), rows, number(1)}), shape);
  }

  /// The row numbers, in the operand of the Slice or Gather `n`, of the rows that it takes.
  Value numbers_taken(Node n) {
    const Value x = n.input(0);
    std::vector<Value> inputs{numbers(x)};
    for (int i = 1; i < n.input_count(); ++i) inputs.push_back(n.input(i));
    Attrs attrs = n.attrs();  // counted from the front, because `numbers` has no last axis
    if (n.op() == "Slice") {
      inputs[3] = ints(graph_, *cut_axes(n));
    } else {
      attrs.set("axis", normal_axis(n, integer_of(n, "axis"), x.rank()));
    }
    return apply_n(n.op(), inputs, 1, std::move(attrs))[0];
  }

  /// The given rows of `v` [d…, k], or all rows if `rows` is null: [p, k].
  Value take(Value v, Value rows) {
    const uint64_t key = (uint64_t{v.id()} << 32U) | (rows ? rows.id() : UINT32_MAX);
    if (const auto found = row_values_.find(key); found != row_values_.end()) return found->second;
    const Value some = make(v, rows);
    row_values_.emplace(key, some);
    return some;
  }

 private:
  /// The attention whose result is `v`, if it leaves out queries.
  const ReadQueries* attention_of(Value v) const {
    const auto found = entered_.count(v.id()) != 0 ? attentions_.find(v.id()) : attentions_.end();
    return found == attentions_.end() ? nullptr : &found->second;
  }

  bool read_inside(Value v, const Readers& readers) const {
    return !graph_.is_output(v) &&
           std::all_of(readers.of(v).begin(), readers.of(v).end(),
                       [&](Node reader) { return inside_.count(reader.id()) != 0; });
  }

  /// Makes the attention that computes `result` leave out queries, if only rewritten nodes read the
  /// result. Returns the value from which queries are made, or null.
  Value enter_attention(Value result, const Readers& readers) {
    if (!read_inside(result, readers)) return {};
    const ReadQueries& a = attentions_.at(result.id());
    entered_.insert(result.id());
    inside_.insert(a.attention.scores.id());
    for (auto move = a.before.rbegin(); move != a.before.rend(); ++move) {
      bool alone = true;
      for (int i = 0; i < move->node.output_count(); ++i) {
        const Value y = move->node.output(i);
        alone = alone && (!y || read_inside(y, readers));
      }
      if (!alone) break;
      inside_.insert(move->node.id());
    }
    return a.source;
  }

  /// The rows of an attention's result that are read.
  Value make_attention(const ReadQueries& a, Value rows) {
    if (logs(Log::rows))
      log(Log::rows, a.attention.softmax.name() + ": queries that nobody reads are left out.");
    const Value axis = ints(graph_, {cut_->by_place ? int64_t{0} : int64_t{1}});
    const Value tokens = apply("Gather", {leads(from_), axis}, {{"axis", int64_t{0}}});
    const Value y = attend_to_read(a, *cut_, tokens, [&](Value x) { return take(x, rows); });
    graph_.set_type(y, {y.dtype(), Shape{rows.shape()[0], y.shape()[1]}});
    return y;
  }

  /// Whether the node may be rewritten. Records nodes that must be computed twice.
  bool may_be_written(Node n, const Readers& readers) {
    for (int i = 1; i < n.output_count(); ++i) {
      const Value y = n.output(i);
      if (y && (graph_.is_output(y) || !readers.of(y).empty())) return false;
    }
    const Value y = n.output(0);
    bool others = graph_.is_output(y), twice = others;
    for (Node reader : readers.of(y)) {
      others = others || inside_.count(reader.id()) == 0;
      twice = twice || others || computed_twice_.count(reader.id()) != 0;
    }
    if (!twice) return true;
    if (products_ > 0 || cut_axes(n) || !y.shape().back().known()) return false;
    computed_twice_.insert(n.id());
    if (others) shared_.push_back(y);
    return true;
  }

  Value make(Value v, Value rows) {
    if (const ReadQueries* a = attention_of(v)) return make_attention(*a, rows);
    const Node n = v.producer();
    if (!n || inside_.count(n.id()) == 0) {
      const Value matrix = v.rank() == 2 ? v : apply("Flatten", {v}, {{"axis", v.rank() - 1}});
      return rows ? apply("steep.TakeRows", {matrix, rows}) : matrix;
    }
    if (keeps_rows(n)) return take(n.input(0), rows);
    if (cut_axes(n)) return take(n.input(0), before_cut(n, rows));
    return write_for_rows(n, rows, rows && needs_leads(n) ? leads(v) : Value(),
                          [&](Value x) { return take(x, rows); });
  }

  /// Converts row numbers of a Slice's result to row numbers of its operand.
  Value before_cut(Node slice, Value rows) {
    return apply("Gather", {reshape(numbers_taken(slice), Ints{-1}), rows});
  }

  Value number(int64_t value) { return graph_.add_constant(Tensor::scalar(value)); }

  Graph& graph_;
  Value from_;
  std::optional<TokenCut> cut_;
  std::unordered_map<uint32_t, ReadQueries> attentions_{};  // by id of the result
  std::unordered_set<uint32_t> entered_{};                  // ids of their results
  std::unordered_set<uint32_t> inside_;                     // ids of nodes
  std::unordered_set<uint32_t> computed_twice_;             // nodes that also compute all rows
  std::vector<Value> shared_;                               // values that other nodes read, too
  size_t products_ = 0;
  std::unordered_map<uint64_t, Value> row_values_;  // by value and rows
};

/// A cross entropy and its scores, whose last axis are the classes.
struct Loss {
  Value scores{};
  Node reader{};  ///< reads the scores
  Value labels{};
  bool joined = false;  ///< labels have one axis, scores may have more
};

/// Whether the loss is a sum or mean over rows, some of which the ignored label excludes.
bool ignores_labels(Node loss, const Readers& readers) {
  if (!loss.attrs().has("ignore_index") || text_of(loss, "reduction") == "none") return false;
  for (int i = 1; i < loss.output_count(); ++i) {
    const Value y = loss.output(i);
    if (y && (loss.graph().is_output(y) || !readers.of(y).empty())) return false;
  }
  const Value labels = loss.input(1);
  const bool integers = labels.dtype() == DType::i64 || labels.dtype() == DType::i32;
  return has_rows(loss.input(0)) && integers && makers_of_labels(labels);
}

/// Fills in `loss` if the loss ignores labels. `reader`: name of the node that reads the scores.
bool take_loss(const Match& m, const char* reader, const Readers& readers, Loss& loss) {
  if (!has_rows(m["scores"]) || !ignores_labels(m.node("loss"), readers)) return false;
  loss = {m["scores"], m.node(reader), m["labels"]};
  return true;
}

/// Whether y = Transpose(x), of rank above 2, moves the last axis to axis 1.
bool moves_classes(Value y) {
  if (!y.type().shape || y.rank() < 3) return false;
  const int64_t rank = y.rank();
  Ints order{0, rank - 1};
  for (int64_t i = 1; i < rank - 1; ++i) order.push_back(i);
  return y.producer().attrs().ints("perm", {}) == order;
}

bool is_along(Node softmax, int64_t axis) {
  const Value x = softmax.input(0);
  return x.type().shape && normal_axis(softmax, integer_of(softmax, "axis"), x.rank()) == axis;
}

bool has_two_axes(Value v) { return v.type().shape && v.rank() == 2; }

constexpr PatternRule<const Readers&, Loss&> kLosses[] = {
    {.name = "compute_read_rows/cross_entropy_of_rows",
     .reason = "The scores of labels that are ignored change nothing.",
     .pattern = "loss: steep.SoftmaxCrossEntropy(only scores, labels, ...)",
     .then = [](const Match& m, const Readers& readers,
                Loss& loss) { return take_loss(m, "loss", readers, loss); }},
    {.name = "compute_read_rows/cross_entropy",
     .reason = "ONNX's operator ignores labels too; its classes are along axis 1, the last of two.",
     .pattern = "loss: SoftmaxCrossEntropyLoss(only scores, labels, ...)",
     .then =
         [](const Match& m, const Readers& readers, Loss& loss) {
           return has_two_axes(m["scores"]) && take_loss(m, "loss", readers, loss);
         }},
    {.name = "compute_read_rows/cross_entropy_of_moved_classes",
     .reason = "Models whose scores have more axes move the classes to axis 1 for the loss.",
     .pattern = "loss: SoftmaxCrossEntropyLoss(only moved: Transpose(only scores), labels, ...)",
     .then =
         [](const Match& m, const Readers& readers, Loss& loss) {
           return moves_classes(m["moved"]) && take_loss(m, "moved", readers, loss);
         }},
    {.name = "compute_read_rows/likelihood",
     .reason = "PyTorch exports a cross entropy as LogSoftmax and the likelihood of its result.",
     .pattern = "loss: NegativeLogLikelihoodLoss(only softmax: LogSoftmax(only scores), labels, "
                "...)",
     .then =
         [](const Match& m, const Readers& readers, Loss& loss) {
           return has_two_axes(m["scores"]) && is_along(m.node("softmax"), 1) &&
                  take_loss(m, "softmax", readers, loss);
         }},
    {.name = "compute_read_rows/likelihood_of_moved_classes",
     .reason = "PyTorch's export moves the classes to axis 1 before LogSoftmax, too.",
     .pattern = "loss: NegativeLogLikelihoodLoss(only softmax: LogSoftmax(only moved: "
                "Transpose(only scores)), labels, ...)",
     .then =
         [](const Match& m, const Readers& readers, Loss& loss) {
           return moves_classes(m["moved"]) && is_along(m.node("softmax"), 1) &&
                  take_loss(m, "moved", readers, loss);
         }},
    {.name = "compute_read_rows/likelihood_of_joined_rows",
     .reason = "PyTorch's export may join the axes before the classes, after LogSoftmax.",
     .pattern = "loss: NegativeLogLikelihoodLoss(only rows: Reshape|Flatten|Identity(only softmax: "
                "LogSoftmax(only scores), ...), labels, ...)",
     .then =
         [](const Match& m, const Readers& readers, Loss& loss) {
           const Value x = m["scores"];
           loss.joined = has_two_axes(m["rows"]) && keeps_rows(m.node("rows")) && has_rows(x) &&
                         is_along(m.node("softmax"), x.rank() - 1) &&
                         take_loss(m, "softmax", readers, loss);
           return loss.joined;
         }},
};

/// The loss at `n`; nothing when its rows are unknown or have other readers.
std::optional<Loss> find_loss(Node n, const Readers& readers) {
  Loss loss;
  if (apply_rules(kLosses, n, Match(readers), readers, loss) == nullptr) return {};
  return loss;
}

/// The labels before nodes that only change their shape.
Value in_order(Value labels) {
  for (;;) {
    const Node n = labels.producer();
    const OpDef* def = n ? find_op(n.op()) : nullptr;
    if (def == nullptr || !def->view) return labels;
    labels = n.input(0);
  }
}

/// Whether `x` has two or more axes of rows, and a known row length.
bool has_axes_of_rows(Value x) {
  return x.producer() && has_rows(x) && x.rank() >= 3 && x.shape().back().known();
}

bool takes_one_token(const Match& m) {
  const Value x = m["x"];
  if (!has_axes_of_rows(x) || !m["taken"].type().shape) return false;
  const Tensor* index = constant(m["index"]);
  const Node n = m.node("taken");
  return index != nullptr && index->size() == 1 &&
         normal_axis(n, integer_of(n, "axis"), x.rank()) < x.rank() - 1;
}

bool takes_few_tokens(const Match& m) {
  const Value x = m["x"], y = m["taken"];
  if (!has_axes_of_rows(x) || !y.type().shape) return false;
  const auto axes = cut_axes(m.node("taken"));
  if (!axes || axes->size() != 1) return false;
  const auto at = static_cast<size_t>(axes->front());
  const Dim &before = x.shape()[at], &after = y.shape()[at];
  return after.known() && (!before.known() || before.value() >= 2 * after.value());
}

/// Nodes that select few rows of x, by a constant index or constant bounds.
constexpr PatternRule<> kTaken[] = {
    {.name = "compute_read_rows/token",
     .reason = "Classifiers read one token of a sequence.",
     .pattern = "taken: Gather(only x, index)",
     .then = takes_one_token},
    {.name = "compute_read_rows/tokens",
     .reason = "Classifiers may read the first or the last tokens.",
     .pattern = "taken: Slice(only x, ...)",
     .then = takes_few_tokens},
};

/// Computes only the rows of selected tokens.
void compute_taken_rows(Graph& g) {
  Readers readers(g);
  for (Node n : g.nodes()) {
    if (apply_rules(kTaken, n, Match(readers)) == nullptr) continue;
    const Value x = n.input(0), y = n.output(0);
    RowRewriter rewriter(g, readers, x, n, token_cut(n));
    if (rewriter.products() == 0 || rewriter.any_computed_twice()) continue;
    const Graph::Scope scope(g, n.phase(), n.name());
    const Value numbers = rewriter.numbers_taken(n);
    const Value shape = concat({shape_of(numbers), ints(g, {x.shape().back().value()})}, 0);
    const Value result = reshape(rewriter.take(x, reshape(numbers, Ints{-1})), shape);
    g.place_like(result.producer(), n);
    g.replace_uses(y, result);
    g.prune();
    readers = Readers(g);
  }
}

/// Computes only the rows whose labels count.
void compute_counted_rows(Graph& g) {
  Readers readers(g);
  for (Node n : g.nodes()) {
    const auto loss = find_loss(n, readers);
    if (!loss) continue;
    RowRewriter rewriter(g, readers, loss->scores, loss->reader);
    if (rewriter.products() == 0) continue;
    const Graph::Scope scope(g, n.phase(), n.name());
    const Value numbers = apply("steep.CountedRows", {in_order(loss->labels)},
                                {{"ignore_index", n.attrs().integer("ignore_index", 0)}});
    Value leads = rewriter.leads(loss->scores);
    if (loss->joined) leads = apply("ReduceProd", {leads}, {{"keepdims", int64_t{1}}});
    const Value rows = apply("steep.CheckedRows", {numbers, loss->labels, leads});
    const Value flat = loss->labels.rank() == 1 ? loss->labels : reshape(loss->labels, {-1});
    std::vector<Value> inputs{rewriter.take(loss->scores, rows),
                              apply("steep.TakeRows", {flat, rows})};
    if (n.input(2)) inputs.push_back(n.input(2));
    Attrs attrs = n.attrs();
    attrs.set("some_rows", int64_t{1});
    const Value y = apply_n("steep.SoftmaxCrossEntropy", inputs, 3, std::move(attrs))[0];
    g.place_like(y.producer(), n);
    g.replace_uses(n.output(0), y);
    rewriter.restore_shared_values();
    g.prune();
    readers = Readers(g);
  }
}

/// The nodes that compute `v` from inputs and constants, at most `most`. Each must satisfy `fits`,
/// which gets the node and whether its data is read.
template <typename Fits>
std::optional<Makers> find_makers(Value v, size_t most, Fits&& fits) {
  Makers makers;
  std::vector<std::pair<Value, bool>> open{{v, true}};
  std::set<std::pair<uint32_t, bool>> visits;
  while (!open.empty()) {
    const auto [value, read] = open.back();
    open.pop_back();
    if (!value || value.role() == Role::constant) continue;
    if (value.role() == Role::state || is_seed(value)) return {};
    const Node n = value.producer();
    if (!n || !visits.emplace(n.id(), read).second) continue;
    makers.insert(n.id());
    const OpDef* def = find_op(n.op());
    if (def == nullptr || n.phase() != Phase::forward || makers.size() > most) return {};
    const bool reads = read && !def->dataless;
    if (!fits(n, reads)) return {};
    for (int i = 0; i < n.input_count(); ++i) open.emplace_back(n.input(i), reads);
  }
  return makers;
}

/// Whether the op, on float data, only moves, compares or adds numbers.
bool is_cheap(const OpDef& def) {
  static const std::unordered_set<std::string_view> kMoves = {
      "Expand",         "Transpose", "Slice", "Concat",        "Split",     "Trilu",    "Gather",
      "GatherElements", "GatherND",  "Tile",  "steep.PutRows", "ReduceMax", "ReduceMin"};
  return def.elementwise || def.view || kMoves.count(def.name) != 0;
}

}  // namespace

std::optional<Makers> makers_of_labels(Value labels) {
  return find_makers(labels, kMostOfLabels, [](Node n, bool reads) {
    return !find_op(n.op())->dynamic && !(reads && is_float(n.output(0).dtype()));
  });
}

std::optional<Makers> makers_of_rows(Value rows) {
  return find_makers(rows, kMostOfRows, [](Node n, bool reads) {
    const OpDef* def = find_op(n.op());
    if (n.op() == "steep.CountedRows") return true;
    return !def->dynamic && (!reads || !is_float(n.output(0).dtype()) || is_cheap(*def));
  });
}

void compute_read_rows(Graph& graph) {
  compute_counted_rows(graph);
  compute_taken_rows(graph);
  compute_real_rows(graph);
}

std::vector<PatternRuleInfo> read_rows_patterns() {
  std::vector<PatternRuleInfo> rules = list_rules(kLosses, kTaken);
  const std::vector<PatternRuleInfo> more = masked_attention_patterns();
  rules.insert(rules.end(), more.begin(), more.end());
  return rules;
}

}  // namespace steep
