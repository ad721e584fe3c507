#include "autodiff/read_queries.h"

#include <algorithm>
#include <string>
#include <utility>

#include "autodiff/row_wise.h"
#include "ops/build.h"

namespace steep {
namespace {

const Dim& extent(Value v, int64_t axis) { return v.shape()[static_cast<size_t>(axis)]; }

/// The axes of [sequences, heads, tokens, k].
TokenAxes axes_of_heads(Value v) {
  TokenAxes axes;
  for (const Counts counts : {Counts::sequences, Counts::other, Counts::tokens, Counts::other})
    axes.push_back({{counts, extent(v, static_cast<int64_t>(axes.size()))}});
  return axes;
}

/// The extents of a value with these axes and `tokens` tokens; one may be unknown (-1). Nothing
/// when more are unknown, or one is 0.
std::optional<Ints> dims_of(const TokenAxes& axes, int64_t tokens) {
  Ints dims;
  for (const auto& axis : axes) {
    int64_t size = 1;
    for (const AxisPart& part : axis) {
      if (part.counts == Counts::tokens) {
        size *= tokens;
      } else {
        size = size < 0 || !part.extent.known() ? -1 : size * part.extent.value();
      }
    }
    if (size == 0) return {};
    dims.push_back(std::max<int64_t>(size, -1));
  }
  return std::count(dims.begin(), dims.end(), -1) <= 1 ? std::optional(dims) : std::nullopt;
}

/// `x`, reshaped to the axes. REQUIRES: dims_of(axes, tokens).
Value shaped(Value x, const TokenAxes& axes, int64_t tokens) {
  const Ints dims = *dims_of(axes, tokens);
  const Value y = reshape(x, dims);
  Shape shape = y.shape();
  for (size_t i = 0; i < axes.size(); ++i) {
    if (dims[i] == -1 && axes[i].size() == 1) shape[i] = axes[i][0].extent;  // keeps the symbol
  }
  x.graph().set_type(y, {y.dtype(), shape});
  return y;
}

/// Whether the node only changes the shape.
bool reshapes(Node n) {
  const OpDef* def = find_op(n.op());
  return def != nullptr && def->view;
}

/// Whether the node can be rewritten for fewer tokens.
bool is_movable(const TokenMove& move, int64_t tokens) {
  return move.node.op() != "Expand" && (!reshapes(move.node) || dims_of(move.axes, tokens));
}

Value moved(const TokenMove& move, Value x, int64_t tokens) {
  const Node n = move.node;
  if (reshapes(n)) return shaped(x, move.axes, tokens);
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) inputs.push_back(i == move.operand ? x : n.input(i));
  return apply_n(n.op(), inputs, n.output_count(), n.attrs()).at(static_cast<size_t>(move.output));
}

/// Whether the rows of `v` are in the order of the cut's tokens.
bool has_rows_of(Value v, const TokenCut& cut, bool by_place) {
  return by_place == cut.by_place && (v.rank() == 2 || v.rank() == 3) && v.shape().back().known();
}

/// Follows the result from the product down to rows, if no other node reads the values between.
bool trace_result(ReadQueries& a, const Readers& readers, const TokenCut& cut, const Dim& sequences,
                  const Dim& tokens) {
  Value v = a.attention.product.output(0);
  TokenAxes axes = axes_of_heads(v);
  for (;;) {
    if (const auto order = by_place(axes, sequences, tokens)) {
      a.result = v;
      return has_rows_of(v, cut, *order);
    }
    const Node n = readers.only(v);
    auto after = n && n.input(0) == v ? axes_after(n, axes) : std::nullopt;
    if (!after) return false;
    axes = *std::move(after);
    v = n.output(0);
    a.after.push_back({n, 0, 0, axes});
    if (!is_movable(a.after.back(), cut.tokens)) return false;
  }
}

/// Whether the node takes part of a value from which keys and values may be made, too.
bool takes_part(Node n) {
  return n && (n.op() == "Split" || n.op() == "Slice" || n.op() == "Gather");
}

/// Follows the queries up to rows. If one product makes queries, keys and values, continues to its
/// operand.
void trace_source(ReadQueries& a, const TokenCut& cut, const Dim& sequences, const Dim& tokens) {
  Value v = a.attention.scores.input(0);
  TokenAxes axes = axes_of_heads(v);
  while (const Node n = v.producer()) {
    auto before = axes_before(n, v, axes);
    if (!before) break;
    a.before.push_back({n, before->first, static_cast<int>(v.output_index()), std::move(axes)});
    if (!is_movable(a.before.back(), cut.tokens)) break;
    v = n.input(before->first);
    axes = std::move(before->second);
    const auto order = by_place(axes, sequences, tokens);
    if (!order || takes_part(v.producer())) continue;
    const bool joined = a.result.rank() == 2 || v.rank() == a.result.rank();
    if (!joined || !has_rows_of(v, cut, *order) || !dims_of(axes, cut.tokens)) break;
    a.source = v;
    a.source_axes = axes;
    std::reverse(a.before.begin(), a.before.end());
    return;
  }
  a.before.clear();
}

/// Whether it is certain how an operand of a mask broadcasts to the scores.
bool is_mask(Value v, const Dim& tokens) {
  if (!v) return true;
  if (!v.type().shape || v.rank() > 4) return false;
  return v.rank() < 2 || is_one(extent(v, v.rank() - 2)) ||
         provably_equal(extent(v, v.rank() - 2), tokens);
}

std::optional<ReadQueries> find(Node softmax, const Readers& readers, const TokenCut& cut) {
  auto attention = match_masked_attention(readers, softmax);
  if (!attention) return {};
  const Node maker = attention->product.input(0).producer();
  if (maker != softmax && maker.op() != "steep.Dropout") return {};  // queries were left out before
  ReadQueries a{*std::move(attention), {}, {}, {}, {}, {}};
  const Value q = a.attention.scores.input(0), x = cut.node.input(0);
  const Dim sequences = extent(q, 0), tokens = extent(q, 2);
  if (is_one(tokens) || !provably_equal(extent(x, cut.by_place ? 1 : 0), sequences) ||
      !provably_equal(extent(x, cut.by_place ? 0 : 1), tokens)) {
    return {};
  }
  for (const ScoreMask& mask : a.attention.masks) {
    for (const Value v : {mask.added, mask.keep, mask.otherwise}) {
      if (!is_mask(v, tokens)) return {};
    }
  }
  if (!trace_result(a, readers, cut, sequences, tokens)) return {};
  trace_source(a, cut, sequences, tokens);
  return a;
}

/// Rewrites an attention for the queries that are read.
class Writer {
 public:
  Writer(const MaskedAttention& a, const TokenCut& cut, Value queries)
      : a_(a), cut_(cut), queries_(queries) {}

  Value product(Value tokens) {
    Value p = apply(a_.softmax.op(), {scores(a_.softmax.input(0))}, a_.softmax.attrs());
    a_.softmax.graph().place_like(p.producer(), a_.softmax);
    const Node maker = a_.product.input(0).producer();
    if (maker != a_.softmax) p = dropped(maker, p, tokens);
    const Value y = matmul(p, a_.product.input(1));
    a_.softmax.graph().place_like(y.producer(), a_.product);
    return y;
  }

 private:
  bool is_of_mask(Value v) const {
    return std::any_of(a_.masks.begin(), a_.masks.end(), [&](const ScoreMask& mask) {
      return v == mask.added || v == mask.keep || v == mask.otherwise;
    });
  }

  Value scores(Value x) {
    const Node n = x.producer();
    Value result;
    if (n == a_.scores) {
      result = matmul(queries_, n.input(1));
    } else {
      std::vector<Value> inputs;
      for (int i = 0; i < n.input_count(); ++i) {
        const Value v = n.input(i);
        if (v.rank() < 2) {
          inputs.push_back(v);
        } else if (is_of_mask(v)) {
          inputs.push_back(is_one(extent(v, v.rank() - 2)) ? v : cut_.along(v, v.rank() - 2));
        } else {
          inputs.push_back(scores(v));
        }
      }
      result = apply(n.op(), inputs, n.attrs());
    }
    n.graph().place_like(result.producer(), n);
    return result;
  }

  /// Dropout whose random numbers depend on an element's index among the probabilities of all
  /// queries.
  Value dropped(Node dropout, Value p, Value tokens) {
    Graph& g = dropout.graph();
    const auto extents = [&](int64_t start, int64_t end) {  // of [sequences, heads, k, keys]
      return apply("Shape", {a_.scores.input(1)}, {{"start", start}, {"end", end}});
    };
    const Value heads = extents(0, 2);
    const Value leads = concat({heads, tokens}, 0);
    const Value count = apply("ReduceProd", {leads}, {{"keepdims", int64_t{0}}});
    const auto number = [&](int64_t n) { return g.add_constant(Tensor::scalar(n)); };
    const Value all = reshape(apply("Range", {number(0), count, number(1)}), leads);
    const Value rows = reshape(cut_.along(all, 2), Ints{-1});
    const Value matrix = apply("Flatten", {p}, {{"axis", int64_t{3}}});
    const Value some =
        apply("steep.DropoutRows", {matrix, rows, leads, dropout.input(1)}, dropout.attrs());
    // not Shape(p): the passes that follow look for one reader of p
    const Value y = reshape(some, concat({heads, ints(g, {cut_.tokens}), extents(3, 4)}, 0));
    g.set_type(y, p.type());
    return y;
  }

  const MaskedAttention& a_;
  const TokenCut& cut_;
  Value queries_;
};

}  // namespace

Value TokenCut::along(Value v, int64_t axis) const {
  Graph& g = v.graph();
  if (node.op() == "Gather")
    return apply("Gather", {v, ints(g, node.input(1).tensor()->to_ints())}, {{"axis", axis}});
  std::vector<Value> inputs{v, node.input(1), node.input(2), ints(g, {axis})};
  if (node.input(4)) inputs.push_back(node.input(4));
  return apply_n("Slice", inputs, 1)[0];
}

std::optional<TokenCut> token_cut(Node n) {
  const Value x = n.input(0);
  if (!x.type().shape || x.rank() != 3) return {};
  if (n.op() == "Gather") return TokenCut{n, normal_axis(n, integer_of(n, "axis"), 3) == 0, 1};
  const auto axes = cut_axes(n);
  if (!axes || axes->size() != 1 || !n.output(0).type().shape) return {};
  const Dim& count = extent(n.output(0), axes->front());
  if (!count.known() || count.value() < 1) return {};
  return TokenCut{n, axes->front() == 0, count.value()};
}

std::unordered_map<uint32_t, ReadQueries> find_read_queries(const Graph& graph,
                                                            const Readers& readers,
                                                            const TokenCut& cut) {
  std::unordered_map<uint32_t, ReadQueries> by_result;
  for (Node n : graph.nodes()) {
    auto a = find(n, readers, cut);
    if (!a) continue;
    const uint32_t result = a->result.id();
    by_result.emplace(result, *std::move(a));
  }
  return by_result;
}

Value leads_of_result(const ReadQueries& a, const TokenCut& cut, Value source_leads) {
  Graph& g = a.result.graph();
  Value leads = source_leads;
  if (!leads) {
    const Ints axes = cut.by_place ? Ints{2, 0} : Ints{0, 2};
    leads = apply("Gather", {shape_of(a.attention.scores.input(0)), ints(g, axes)},
                  {{"axis", int64_t{0}}});
  }
  return a.result.rank() == 2 ? apply("ReduceProd", {leads}, {{"keepdims", int64_t{1}}}) : leads;
}

Value attend_to_read(const ReadQueries& a, const TokenCut& cut, Value tokens,
                     const std::function<Value(Value)>& take) {
  Value q = a.source ? shaped(take(a.source), a.source_axes, cut.tokens)
                     : cut.along(a.attention.scores.input(0), 2);
  Graph& g = q.graph();
  const Node softmax = a.attention.softmax;
  const Graph::Scope scope(g, softmax.phase(), softmax.name());
  for (const TokenMove& move : a.before) q = moved(move, q, cut.tokens);
  Value y = Writer(a.attention, cut, q).product(tokens);
  for (const TokenMove& move : a.after) y = moved(move, y, cut.tokens);
  return reshape(y, Ints{-1, a.result.shape().back().value()});
}

}  // namespace steep
