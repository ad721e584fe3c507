#include "autodiff/real_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "autodiff/masked_attention.h"
#include "autodiff/read_rows.h"
#include "autodiff/row_wise.h"
#include "autodiff/token_axes.h"
#include "ops/build.h"
#include "runtime/counted.h"
#include "runtime/logs.h"

namespace steep {
namespace {

constexpr size_t kMostToCopy = 128;  // nodes copied for one value

/// The rows of a value are the tokens of a space, in one of two orders.
struct Tokens {
  int space;
  bool by_place;
};

/// Tokens that are hidden together: those of one batch of sequences.
struct Space {
  Dim sequences, tokens;
  int joined = -1;  ///< the space it is merged into; -1: none
  Value seen{};     ///< MaskedAttention::seen, over all queries of all attentions
  /// Further rows that are read; whether by place.
  std::vector<std::pair<Value, bool>> more_rows{};
  std::array<Value, 2> rows{}, leads{};  ///< indexed by Tokens::by_place
};

class RealRows {
 public:
  explicit RealRows(Graph& g) : g_(g), nodes_(g.nodes()), readers_(g) {}

  void run() {
    find_attentions();
    if (attentions_.empty()) {
      say("All tokens are computed: no input says which ones attention hides.");
      return;
    }
    for (MaskedAttention& a : attentions_) trace(a);
    spread();
    if (conflict_) {
      say("Tokens stay: two attentions number the rows of a value in different orders.");
      return;
    }
    find_spaces();
    find_unread();
    find_inside();
    tell_why();
    if (!inside_.empty() && number_rows()) write();
  }

 private:
  static void say(const std::string& text) {
    if (logs(Log::rows)) log(Log::rows, text);
  }

  void find_attentions() {
    bool any = false;
    for (Node n : nodes_) {
      auto a = n.phase() == Phase::forward ? match_masked_attention(readers_, n) : std::nullopt;
      if (!a) continue;
      const Graph::Scope scope(g_, Phase::forward, n.name());
      for (const ScoreMask& mask : a->masks) {
        const Value visibility = seen_through(mask, a->scores.input(1), a->masks.size() == 1);
        if (!visibility || !reads_inputs(visibility, visibility.shape()[0])) continue;
        a->seen = a->seen ? apply("Min", {a->seen, visibility}) : visibility;
        any = true;
      }
      attentions_.push_back(std::move(*a));
    }
    if (!any) attentions_.clear();
    for (size_t i = 0; i < attentions_.size(); ++i) {
      reads_[attentions_[i].scores.id()] = i;
      reads_[attentions_[i].product.id()] = i;
    }
  }

  // --- rows of values ---------------------------------------------------------------------------

  int root(int space) const {
    while (spaces_[static_cast<size_t>(space)].joined >= 0)
      space = spaces_[static_cast<size_t>(space)].joined;
    return space;
  }
  Space& space(int any) { return spaces_[static_cast<size_t>(root(any))]; }

  int new_space(const Dim& sequences, const Dim& tokens) {
    spaces_.push_back({sequences, tokens});
    return static_cast<int>(spaces_.size()) - 1;
  }

  void join(int a, int b) {
    a = root(a), b = root(b);
    if (a == b) return;
    Space &x = space(a), &y = space(b);
    const bool alike =
        provably_equal(x.sequences, y.sequences) && provably_equal(x.tokens, y.tokens);
    if (!alike) conflict_ = true;
    y.joined = a;
  }

  void assign(Value v, Tokens tokens) {
    const auto [at, added] = tokens_.emplace(v.id(), tokens);
    if (added) {
      fresh_.push_back(v);
      return;
    }
    join(at->second.space, tokens.space);
    if (at->second.by_place != tokens.by_place) conflict_ = true;
  }

  void trace(MaskedAttention& a) {
    const Value q = a.scores.input(0), k = a.scores.input(1), v = a.product.input(1);
    const Value y = a.product.output(0);
    const auto part = [](Value x, int64_t axis, Counts counts) {
      return std::vector<AxisPart>{{counts, x.shape()[static_cast<size_t>(axis)]}};
    };
    const auto heads = [&](Value x) {
      return TokenAxes{part(x, 0, Counts::sequences), part(x, 1, Counts::other),
                       part(x, 2, Counts::tokens), part(x, 3, Counts::other)};
    };
    a.queries = new_space(q.shape()[0], q.shape()[2]);
    a.keys = new_space(k.shape()[0], k.shape()[3]);
    a.left = trace_up(q, heads(q), a.queries);
    a.right = trace_up(k,
                       {part(k, 0, Counts::sequences), part(k, 1, Counts::other),
                        part(k, 2, Counts::other), part(k, 3, Counts::tokens)},
                       a.keys);
    a.values = trace_up(v, heads(v), a.keys);
    trace_down(y, heads(y), a.queries);
  }

  /// Assigns tokens to the value, if its rows are tokens.
  bool settle(Value v, const TokenAxes& axes, int of) {
    const auto order = by_place(axes, space(of).sequences, space(of).tokens);
    if (order) assign(v, {of, *order});
    return order.has_value();
  }

  /// Goes up to the farthest value whose rows are tokens.
  bool trace_up(Value v, TokenAxes axes, int of) {
    bool found = false;
    std::vector<uint32_t> moves;
    while (Node n = v.producer()) {
      auto before = axes_before(n, v, axes);
      if (!before) break;
      moves.push_back(n.id());
      v = n.input(before->first);
      axes = std::move(before->second);
      if (!settle(v, axes, of)) continue;
      found = true;
      moves_.insert(moves.begin(), moves.end());
    }
    return found;
  }

  void trace_down(Value v, const TokenAxes& axes, int of) {
    if (settle(v, axes, of)) return;
    for (Node n : readers_.of(v)) {
      const auto after = axes_after(n, axes);
      if (!after || n.input(0) != v) continue;
      moves_.insert(n.id());
      trace_down(n.output(0), *after, of);
    }
  }

  /// For each operand of a node whose rows depend on one row at the same position: how it is used.
  static std::optional<std::vector<RowOperand>> row_wise(Node n) {
    return cut_axes(n) ? std::nullopt : by_rows(n);
  }

  /// Whether the node transposes [sequences, tokens, k] to [tokens, sequences, k] or back.
  bool turns(Node n, Tokens tokens) {
    return n.op() == "Transpose" && n.attrs().ints("perm", {}) == Ints{1, 0, 2} &&
           is_batch(n.input(0), tokens);
  }

  Tokens turned(Tokens tokens) {
    const Dim one(1);
    const Space& s = space(tokens.space);
    const bool alike = provably_equal(s.sequences, one) || provably_equal(s.tokens, one);
    return {tokens.space, alike ? tokens.by_place : !tokens.by_place};
  }

  /// Spreads tokens through row-wise nodes.
  void spread() {
    while (!fresh_.empty() && !conflict_) {
      const Value v = fresh_.back();
      fresh_.pop_back();
      const Tokens tokens = tokens_.at(v.id());
      if (const Node n = v.producer(); n && v == n.output(0)) {
        assign_operands(n, tokens);
        const Tokens before = turned(tokens);
        if (turns(n, before)) {
          moves_.insert(n.id());
          assign(n.input(0), before);
        }
      }
      for (Node n : readers_.of(v)) {
        const auto operands = row_wise(n);
        for (int i = 0; operands && i < n.input_count(); ++i) {
          if (n.input(i) == v && operands->at(static_cast<size_t>(i)) == RowOperand::rows)
            assign(n.output(0), tokens);
        }
        if (turns(n, tokens)) {
          moves_.insert(n.id());
          assign(n.output(0), turned(tokens));
        }
      }
    }
  }

  void assign_operands(Node n, Tokens tokens) {
    const auto operands = row_wise(n);
    for (int i = 0; operands && i < n.input_count(); ++i) {
      if (operands->at(static_cast<size_t>(i)) == RowOperand::rows) assign(n.input(i), tokens);
    }
  }

  /// Computes which keys of each space are visible.
  void find_spaces() {
    for (const MaskedAttention& a : attentions_) {
      if (!a.seen) continue;
      Space& s = space(a.keys);
      const Graph::Scope scope(g_, Phase::forward, a.softmax.name());
      s.seen = s.seen ? apply("Max", {s.seen, a.seen}) : a.seen;
    }
  }

  // --- values whose rows are not read -----------------------------------------------------------

  bool is_unread(Value v) const { return unread_.count(v.id()) != 0; }

  void find_unread() {
    for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) {
      for (int i = 0; i < it->output_count(); ++i) {
        if (it->output(i)) decide(it->output(i));
      }
    }
  }

  /// Determines whether all readers ignore the rows of hidden tokens.
  void decide(Value v) {
    if (g_.is_output(v)) {
      why_[v.id()] = fmt::format("{} is an output", v.name());
      return;
    }
    for (Node n : readers_.of(v)) {
      if (ignores(n, v)) continue;
      const auto entry = reads_.find(n.id());
      const Value y = entry != reads_.end() ? attentions_[entry->second].product.output(0)
                      : moves_.count(n.id()) != 0 || row_wise(n) ? n.output(0)
                                                                 : Value();
      const auto further = y ? why_.find(y.id()) : why_.end();
      why_[v.id()] = further != why_.end()
                         ? further->second
                         : fmt::format("{} is read by {} ({})", v.name(), n.name(), n.op());
      return;
    }
    unread_.insert(v.id());
  }

  bool ignores(Node n, Value v) {
    const OpDef* def = find_op(n.op());
    if (def != nullptr && def->dataless) return true;
    if (const auto at = reads_.find(n.id()); at != reads_.end()) {
      const MaskedAttention& a = attentions_[at->second];
      if (n == a.product) return n.input(0) != v && a.values && a.seen;
      const bool queries = n.input(0) == v;
      return queries ? a.left && is_unread(a.product.output(0)) : a.right && a.seen;
    }
    const auto tokens = tokens_.find(v.id());
    if (moves_.count(n.id()) != 0) return v.rank() > 1 && all_unread(n);
    if (tokens == tokens_.end()) return false;
    if (n.op() == "steep.TakeRows" && n.input(0) == v && v.rank() == 2)
      return take_rows(n.input(1), tokens->second);
    const auto operands = row_wise(n);
    if (!operands || tokens_.count(n.output(0).id()) == 0 || !is_writable(n.output(0)))
      return false;
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) == v && operands->at(static_cast<size_t>(i)) != RowOperand::rows) return false;
    }
    for (int i = 1; i < n.output_count(); ++i) {
      const Value y = n.output(i);
      if (y && (g_.is_output(y) || !readers_.of(y).empty())) return false;
    }
    return is_unread(n.output(0));
  }

  /// Whether the computed rows can be scattered back: the shape must be known without the value.
  bool is_writable(Value v) {
    if (!v.shape().back().known()) return false;
    return v.rank() == 2 || v.type().concrete() || is_batch(v, tokens_.at(v.id()));
  }

  /// Whether it is [sequences, tokens, k], or [tokens, sequences, k] for rows by place.
  bool is_batch(Value x, Tokens tokens) {
    const Space& s = space(tokens.space);
    return x.type().shape && x.rank() == 3 &&
           provably_equal(x.shape()[0], tokens.by_place ? s.tokens : s.sequences) &&
           provably_equal(x.shape()[1], tokens.by_place ? s.sequences : s.tokens);
  }

  bool all_unread(Node n) const {
    for (int i = 0; i < n.output_count(); ++i) {
      if (n.output(i) && !is_unread(n.output(i))) return false;
    }
    return true;
  }

  /// Marks rows that are read by number as computed, if the numbers are known in advance.
  bool take_rows(Value rows, Tokens tokens) {
    Space& s = space(tokens.space);
    if (!s.seen) return false;
    std::unordered_map<uint32_t, Value> copies;
    const Graph::Scope scope(g_, Phase::forward, rows.name());
    const Value source = without_extents(rows, copies);
    if (!source || !makers_of_rows(source)) return false;
    s.more_rows.emplace_back(source, tokens.by_place);
    return true;
  }

  /// A copy of `v` that takes extents from the masks instead of from values of tokens; null when
  /// `v` depends on anything else.
  Value without_extents(Value v, std::unordered_map<uint32_t, Value>& copies) {
    const Node n = v.producer();
    if (!n) return v.role() == Role::state ? Value() : v;
    if (const auto entry = copies.find(v.id()); entry != copies.end()) return entry->second;
    Value copy;
    if (n.op() == "steep.CountedRows") {
      copy = v;
    } else if (n.op() == "Shape") {
      const Value x = n.input(0);
      const auto tokens = tokens_.find(x.id());
      if (tokens != tokens_.end()) copy = extents(n, tokens->second);
    } else {
      if (copies.size() > kMostToCopy || is_float(v.dtype())) return {};
      std::vector<Value> inputs;
      for (int i = 0; i < n.input_count(); ++i) {
        inputs.push_back(n.input(i) ? without_extents(n.input(i), copies) : Value());
        if (n.input(i) && !inputs.back()) return {};
      }
      copy = apply_n(n.op(), inputs, n.output_count(), n.attrs())
                 .at(static_cast<size_t>(v.output_index()));
    }
    if (copy) copies.emplace(v.id(), copy);
    return copy;
  }

  /// The result of Shape(x), where x has the rows of tokens, from the masks; null when it contains
  /// more than the extents of rows.
  Value extents(Node shape, Tokens tokens) {
    const Value x = shape.input(0);
    const bool of_rows =
        integer_of(shape, "start") == 0 && shape.attrs().integer("end", x.rank()) == x.rank() - 1;
    const Space& s = space(tokens.space);
    if (!of_rows) return {};
    if (x.rank() == 2) return apply("ReduceProd", {shape_of(s.seen)}, {{"keepdims", int64_t{1}}});
    return is_batch(x, tokens) ? shape_of(by_order(s.seen, tokens.by_place)) : Value();
  }

  static Value by_order(Value mask, bool by_place) {
    return by_place ? transpose(mask, {1, 0}) : mask;
  }

  // --- the rewriting ----------------------------------------------------------------------------

  bool is_inside(Node n) const { return n && inside_.count(n.id()) != 0; }

  /// Finds the row-wise nodes that compute fewer rows: connected groups that contain a product.
  void find_inside() {
    std::unordered_set<uint32_t> may, reached;
    std::vector<Node> open;
    for (Node n : nodes_) {
      const Value y = n.output(0);
      if (!y || !is_unread(y)) continue;
      const auto tokens = tokens_.find(y.id());
      if (tokens == tokens_.end() || !space(tokens->second.space).seen) continue;
      if (!row_wise(n) || !is_writable(y)) continue;
      may.insert(n.id());
      if (is_product(n)) open.push_back(n);
    }
    while (!open.empty()) {
      const Node n = open.back();
      open.pop_back();
      if (!n || may.count(n.id()) == 0 || !inside_.insert(n.id()).second) continue;
      const auto operands = row_wise(n);
      for (int i = 0; i < n.input_count(); ++i) {
        if (operands->at(static_cast<size_t>(i)) == RowOperand::rows)
          open.push_back(n.input(i).producer());
      }
      for (Node user : readers_.of(n.output(0))) {
        if (tokens_.count(user.output(0).id()) != 0) open.push_back(user);
      }
    }
  }

  /// Computes the row numbers. Returns false if they depend on nodes that would compute these rows.
  bool number_rows() {
    for (Space& s : spaces_) {
      if (s.joined >= 0 || !s.seen) continue;
      const Graph::Scope scope(g_, Phase::forward, "real tokens");
      Value real = s.seen;
      for (const auto& [rows, by_place] : s.more_rows) {
        const Value matrix = by_order(s.seen, by_place);
        const Value shape = shape_of(matrix);
        const Value all = apply("ReduceProd", {shape}, {{"keepdims", int64_t{1}}});
        const Value ones = apply("Expand", {scalar(g_, 1, DType::f32), shape_of(rows)});
        const Value places = reshape(apply("steep.PutRows", {ones, rows, all}), shape);
        real = apply("Max", {real, by_order(places, by_place)});
      }
      real = cast(real, DType::i64);
      const auto makers = makers_of_rows(real);
      if (!makers || std::any_of(makers->begin(), makers->end(),
                                 [&](uint32_t id) { return inside_.count(id) != 0; })) {
        say("Tokens stay: which are hidden depends on what is computed of them.");
        return false;
      }
      for (const bool by_place : {false, true}) {
        const Value matrix = by_order(real, by_place);
        s.rows.at(by_place) = apply("steep.CountedRows", {matrix},
                                    {{"even", int64_t{1}}, {"ignore_index", int64_t{0}}});
        s.leads.at(by_place) = shape_of(matrix);
      }
    }
    return true;
  }

  void write() {
    std::vector<Value> results;  // values of inside nodes that other nodes read
    for (Node n : nodes_) {
      if (!is_inside(n)) continue;
      const auto& readers = readers_.of(n.output(0));
      if (std::any_of(readers.begin(), readers.end(), [&](Node r) { return !is_inside(r); }))
        results.push_back(n.output(0));
    }
    size_t products = 0;
    for (const uint32_t id : inside_) products += is_product(Node(&g_, id)) ? 1 : 0;
    for (const Value v : results) take(v);  // before the operands of readers change
    for (const Value v : results) {
      const Tokens tokens = tokens_.at(v.id());
      const Space& s = space(tokens.space);
      const Graph::Scope scope(g_, Phase::forward, v.producer().name());
      const Value some = take(v), leads = s.leads.at(tokens.by_place);
      const Value all = apply("ReduceProd", {leads}, {{"keepdims", int64_t{1}}});
      const Value row = ints(g_, {v.shape().back().value()});
      Value whole =
          apply("steep.PutRows", {some, s.rows.at(tokens.by_place), concat({all, row}, 0)});
      if (v.rank() != 2) whole = reshape(whole, shape_of_rows(v, leads, row));
      g_.set_type(whole, v.type());
      g_.replace_uses(v, whole);
    }
    g_.prune();
    say(fmt::format("Tokens that masks hide are left out of {}.", counted(products, "product")));
  }

  /// The shape of `v`, computed without `v`. REQUIRES: is_writable(v).
  Value shape_of_rows(Value v, Value leads, Value row) {
    return v.type().concrete() ? ints(g_, v.type().dims()) : concat({leads, row}, 0);
  }

  Value take(Value v) {
    if (const auto found = row_values_.find(v.id()); found != row_values_.end())
      return found->second;
    const Tokens tokens = tokens_.at(v.id());
    const Space& s = space(tokens.space);
    const Value rows = s.rows.at(tokens.by_place);
    const Node n = v.producer();
    Value some;
    if (!is_inside(n)) {
      const Value matrix = v.rank() == 2 ? v : apply("Flatten", {v}, {{"axis", v.rank() - 1}});
      some = apply("steep.TakeRows", {matrix, rows});
    } else if (keeps_rows(n)) {
      some = take(n.input(0));
    } else {
      some = write_for_rows(n, rows, s.leads.at(tokens.by_place), [&](Value x) { return take(x); });
    }
    row_values_.emplace(v.id(), some);
    return some;
  }

  /// Logs why rows that a mask hides are still computed.
  void tell_why() const {
    if (!logs(Log::rows)) return;
    for (const MaskedAttention& a : attentions_) {
      if (!a.seen) continue;
      const bool traced = a.left && a.right && a.values;
      const auto why = why_.find(a.product.output(0).id());
      if (!traced || why != why_.end()) {
        say(fmt::format("Queries that the mask of {} hides as keys are computed: {}.",
                        a.softmax.name(),
                        traced ? why->second : "its operands are not made row by row"));
      }
    }
    if (inside_.empty()) say("No product has rows that nobody reads.");
  }

  Graph& g_;
  const std::vector<Node> nodes_;  // the nodes before the rewrite
  const Readers readers_;
  std::vector<MaskedAttention> attentions_;
  std::unordered_map<uint32_t, size_t> reads_;  // node id → index of the attention
  std::vector<Space> spaces_;
  std::unordered_map<uint32_t, Tokens> tokens_;  // by value id
  std::vector<Value> fresh_;                     // values whose neighbours remain to be visited
  bool conflict_ = false;
  std::unordered_set<uint32_t> moves_;   // ids of nodes that move tokens to or from attention
  std::unordered_set<uint32_t> unread_;  // ids of values
  std::unordered_map<uint32_t, std::string> why_;
  std::unordered_set<uint32_t> inside_;  // ids of nodes
  std::unordered_map<uint32_t, Value> row_values_;
};

}  // namespace

void compute_real_rows(Graph& graph) {
  RealRows(graph).run();
  graph.prune();
}

}  // namespace steep
