#include "model/import/open_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ops/build.h"
#include "ops/shape_arithmetic.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Where the rows of a batch lie in a value: `axis` has `each` entries for one row, row by row.
struct Rows {
  int64_t axis = 0;
  int64_t each = 1;
  bool operator==(const Rows&) const = default;
};

/// Why rows cannot be followed.
struct Lost {
  std::string why;
};

constexpr const char* kMixes = "mixes rows";
constexpr const char* kNumber = "holds a number of rows";
constexpr const char* kUnknown = "is not known to keep rows apart";

[[noreturn]] void lose(const char* why) { throw Lost{why}; }
void need(bool holds, const char* why = kMixes) {
  if (!holds) lose(why);
}

using Placed = std::optional<Rows>;  ///< none: the same for every batch

int64_t rank_of(Value v) {
  need(v && v.type().shape.has_value() && v.type().kind == Kind::tensor, kUnknown);
  return v.rank();
}

bool is_one(const Dim& d) { return d.known() && d.value() == 1; }

std::optional<int64_t> product(const Shape& shape, size_t from, size_t to) {
  int64_t all = 1;
  for (size_t i = from; i < to; ++i) {
    if (!shape[i].known()) return {};
    if (__builtin_mul_overflow(all, shape[i].value(), &all)) return {};
  }
  return all;
}

/// Follows the rows through one graph.
class Follower {
 public:
  Follower(Graph& graph, std::string symbol, int64_t rows)
      : graph_(graph), symbol_(std::move(symbol)), rows_(rows) {}

  void follow() {
    for (Value input : graph_.inputs()) {
      if (input.type().shape && !input.type().shape->empty() && is_batch(input.shape()[0]))
        placed_[input.id()] = {};
    }
    for (Node n : graph_.nodes()) {
      try {
        visit(n);
      } catch (const Lost& lost) {
        throw Lost{fmt::format("{} '{}' {}", n.op(), n.name(), lost.why)};
      }
    }
    for (const Output& output : graph_.outputs()) {
      const Placed at = place(output.value);
      if (sizes_.count(output.value.id()) != 0 || (at && *at != Rows{})) {
        throw Lost{fmt::format("output '{}' does not have a row for each row", output.name)};
      }
    }
  }

 private:
  bool is_batch(const Dim& d) const { return !d.known() && d.symbol() == symbol_; }
  bool is_batch(const Element& e) const { return !e.number && e.symbol == symbol_; }

  Placed place(Value v) const {
    const auto found = v ? placed_.find(v.id()) : placed_.end();
    return found == placed_.end() ? Placed() : Placed(found->second);
  }
  Placed in(Node n, int i) const { return place(n.input(i)); }
  bool is_size(Value v) const { return v && sizes_.count(v.id()) != 0; }
  /// The same for every batch, and no extent of one.
  void need_same(Node n, int first, int last = 1 << 20) const {
    for (int i = first; i < std::min(last, n.input_count()); ++i) need(!in(n, i));
  }

  void visit(Node n) {
    bool rows = false, size = false;
    for (int i = 0; i < n.input_count(); ++i) {
      rows = rows || in(n, i).has_value();
      size = size || is_size(n.input(i));
    }
    if (!rows && !size) return;
    for (const auto& [name, attr] : n.attrs()) {
      need(!std::holds_alternative<Body>(attr), kUnknown);
    }
    if (rows) {
      if (n.op() == "Reshape") rewrite_reshape(n);
      if (n.op() == "Expand") rewrite_expand(n);
      if (n.op() == "LSTM" || n.op() == "GRU" || n.op() == "RNN") leave_out_zeros(n);
    }
    infer_anew(n);
    if (n.op() == "Shape" || n.op() == "Size") {
      for (int i = 0; i < n.output_count(); ++i) note_size(n.output(i));
      return;
    }
    if (size && !takes_sizes(n)) {
      need(!rows, kNumber);
      need(graph_.contents(n.output(0)) != nullptr && n.output_count() == 1, kNumber);
      note_size(n.output(0));
      return;
    }
    const std::vector<Placed> placed = outputs_of(n);
    for (int i = 0; i < n.output_count(); ++i) {
      const Value y = n.output(i);
      const Placed at =
          static_cast<size_t>(i) < placed.size() ? placed[static_cast<size_t>(i)] : Placed();
      if (!y || !at) continue;
      need(rank_of(y) > at->axis, kUnknown);
      // Whatever was overlooked: an extent that is known does not depend on the batch.
      const Dim& extent = y.shape()[static_cast<size_t>(at->axis)];
      need(!extent.known() && (extent.symbol().empty() || at->each != 1 || is_batch(extent)),
           kNumber);
      placed_[y.id()] = *at;
      if (at->each == 1 && extent.symbol().empty()) name_extent(y, static_cast<size_t>(at->axis));
    }
  }

  void name_extent(Value y, size_t axis) const {
    Type type = y.type();
    (*type.shape)[axis] = Dim::symbol(symbol_);
    graph_.set_type(y, std::move(type));
  }

  /// Nodes before it may have become others: what was known of its results is forgotten.
  void infer_anew(Node n) const {
    for (int i = 0; i < n.output_count(); ++i) {
      const Value y = n.output(i);
      const Shape* before = y ? graph_.contents(y) : nullptr;
      if (before != nullptr) graph_.set_contents(y, Shape(before->size()));
    }
    infer_types(n);
  }

  /// Shape arithmetic: an extent of the batch, unless every element is another.
  void note_size(Value y) {
    if (!y) return;
    const auto elements = elements_of(y);
    const bool same =
        elements && std::all_of(elements->begin(), elements->end(), [&](const Element& e) {
          return e.number || (!e.symbol.empty() && e.symbol != symbol_);
        });
    if (!same) sizes_.insert(y.id());
  }

  bool takes_sizes(Node n) const {
    const std::string& op = n.op();
    const bool shaped = op == "Reshape" || op == "Expand";
    return (shaped && !is_size(n.input(0))) || op == "ConstantOfShape";
  }

  // --- what nodes do with rows -------------------------------------------------------------------

  std::vector<Placed> outputs_of(Node n) {
    using Rule = std::vector<Placed> (Follower::*)(Node);
    static const std::unordered_map<std::string_view, Rule> kRules = {
        {"Identity", &Follower::same_place},
        {"steep.StopGradient", &Follower::same_place},
        {"Reshape", &Follower::reshape},
        {"Flatten", &Follower::flatten},
        {"Squeeze", &Follower::squeeze},
        {"Unsqueeze", &Follower::unsqueeze},
        {"Expand", &Follower::expand},
        {"ConstantOfShape", &Follower::constant_of_shape},
        {"Transpose", &Follower::transpose},
        {"MatMul", &Follower::matmul},
        {"Einsum", &Follower::einsum},
        {"Concat", &Follower::concat},
        {"Split", &Follower::along_axis},
        {"Slice", &Follower::slice},
        {"Pad", &Follower::pad},
        {"Tile", &Follower::tile},
        {"Gather", &Follower::gather},
        {"GatherElements", &Follower::gather_elements},
        {"OneHot", &Follower::one_hot},
        {"Trilu", &Follower::trilu},
        {"Softmax", &Follower::along_axis},
        {"LogSoftmax", &Follower::along_axis},
        {"Hardmax", &Follower::along_axis},
        {"LpNormalization", &Follower::along_axis},
        {"TopK", &Follower::along_axis},
        {"CumSum", &Follower::cum_sum},
        {"LayerNormalization", &Follower::layer_norm},
        {"ArgMax", &Follower::reduce},
        {"ArgMin", &Follower::reduce},
        {"Conv", &Follower::images},
        {"ConvTranspose", &Follower::images},
        {"MaxPool", &Follower::max_pool},
        {"AveragePool", &Follower::images},
        {"LpPool", &Follower::images},
        {"GlobalAveragePool", &Follower::images},
        {"GlobalMaxPool", &Follower::images},
        {"GlobalLpPool", &Follower::images},
        {"BatchNormalization", &Follower::images},
        {"InstanceNormalization", &Follower::images},
        {"GroupNormalization", &Follower::images},
        {"LRN", &Follower::images},
        {"DepthToSpace", &Follower::images},
        {"SpaceToDepth", &Follower::images},
        {"Resize", &Follower::resize},
        {"LSTM", &Follower::recurrent},
        {"GRU", &Follower::recurrent},
        {"RNN", &Follower::recurrent},
    };
    if (const auto rule = kRules.find(n.op()); rule != kRules.end()) {
      return (this->*rule->second)(n);
    }
    if (n.op().starts_with("Reduce")) return reduce(n);
    const OpDef* def = find_op(n.op());
    need(def != nullptr && def->elementwise, kUnknown);
    return elementwise(n);
  }

  std::vector<Placed> same_place(Node n) { return {in(n, 0)}; }

  /// Operands meet from the right: rows with rows, and nothing else with them.
  std::vector<Placed> elementwise(Node n) {
    const int64_t rank = rank_of(n.output(0));
    Placed met;
    for (int i = 0; i < n.input_count(); ++i) {
      const Placed at = in(n, i);
      if (!at) continue;
      const Rows there{at->axis + rank - rank_of(n.input(i)), at->each};
      need(!met || *met == there);
      met = there;
    }
    need(met.has_value());
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) && !in(n, i)) need(is_broadcast(n.input(i), met->axis - rank), kNumber);
    }
    return std::vector<Placed>(static_cast<size_t>(n.output_count()), met);
  }

  /// Has `v` one entry, or none, at this axis counted from the end (negative)?
  bool is_broadcast(Value v, int64_t axis) const {
    const int64_t rank = rank_of(v);
    return rank + axis < 0 || is_one(v.shape()[static_cast<size_t>(rank + axis)]);
  }

  /// Of nodes that work along attribute `axis`, alone.
  std::vector<Placed> along_axis(Node n) {
    const Rows at = data(n);
    need(normal_axis(n, integer_of(n, "axis"), rank_of(n.input(0))) != at.axis);
    return std::vector<Placed>(static_cast<size_t>(n.output_count()), at);
  }

  /// Of input 0, which alone has rows.
  Rows data(Node n) const {
    need_same(n, 1);
    need(in(n, 0).has_value());
    return *in(n, 0);
  }

  static Ints constant_ints(Value v) {
    const Tensor* tensor = constant(v);
    need(tensor != nullptr, kUnknown);
    return tensor->to_ints();
  }

  std::vector<Placed> cum_sum(Node n) {
    const Rows at = data(n);
    for (const int64_t axis : constant_ints(n.input(1)))
      need(normal_axis(n, axis, rank_of(n.input(0))) != at.axis);
    return {at};
  }

  std::vector<Placed> layer_norm(Node n) {
    const Rows at = data(n);
    const int64_t rank = rank_of(n.input(0));
    need(at.axis < normal_axis(n, integer_of(n, "axis"), rank));
    for (const int i : {1, 2}) {
      if (n.input(i)) need(is_broadcast(n.input(i), at.axis - rank), kNumber);
    }
    return std::vector<Placed>(static_cast<size_t>(n.output_count()), at);
  }

  std::vector<Placed> reduce(Node n) {
    const Rows at = data(n);
    const int64_t rank = rank_of(n.input(0));
    Ints axes;
    if (n.op() == "ArgMax" || n.op() == "ArgMin") {
      axes = {integer_of(n, "axis")};
    } else if (n.input(1)) {
      axes = constant_ints(n.input(1));
    }
    if (axes.empty()) {
      need(n.attrs().integer("noop_with_empty_axes", 0) != 0);
      return {at};
    }
    int64_t before = 0;
    for (int64_t axis : axes) {
      axis = normal_axis(n, axis, rank);
      need(axis != at.axis);
      before += axis < at.axis ? 1 : 0;
    }
    return {Rows{n.attrs().integer("keepdims", 1) != 0 ? at.axis : at.axis - before, at.each}};
  }

  std::vector<Placed> transpose(Node n) {
    const Rows at = data(n);
    const int64_t rank = rank_of(n.input(0));
    const Ints perm = n.attrs().ints("perm", {});
    if (perm.empty()) return {Rows{rank - 1 - at.axis, at.each}};
    const auto found = std::find(perm.begin(), perm.end(), at.axis);
    need(found != perm.end(), kUnknown);
    return {Rows{found - perm.begin(), at.each}};
  }

  std::vector<Placed> concat(Node n) {
    const int64_t axis = normal_axis(n, n.attrs().integer("axis"), rank_of(n.output(0)));
    for (int i = 0; i < n.input_count(); ++i) {
      need(in(n, i).has_value(), kNumber);
      need(*in(n, i) == *in(n, 0) && in(n, 0)->axis != axis);
    }
    return {in(n, 0)};
  }

  std::vector<Placed> slice(Node n) {
    const Rows at = data(n);
    need(n.input(3) != Value() || rank_of(n.input(1)) == 1, kUnknown);
    Ints axes;
    if (n.input(3)) {
      axes = constant_ints(n.input(3));
    } else {
      for (size_t i = 0; i < constant_ints(n.input(1)).size(); ++i)
        axes.push_back(static_cast<int64_t>(i));
    }
    for (const int64_t axis : axes) need(normal_axis(n, axis, rank_of(n.input(0))) != at.axis);
    return {at};
  }

  std::vector<Placed> pad(Node n) {
    const Rows at = data(n);
    const Ints pads = constant_ints(n.input(1));
    Ints axes;
    if (n.input(3)) axes = constant_ints(n.input(3));
    const size_t count = pads.size() / 2;
    need(axes.empty() || axes.size() == count, kUnknown);
    for (size_t i = 0; i < count; ++i) {
      const int64_t axis =
          axes.empty() ? static_cast<int64_t>(i) : normal_axis(n, axes[i], rank_of(n.input(0)));
      if (axis == at.axis) need(pads[i] == 0 && pads[i + count] == 0);
    }
    return {at};
  }

  std::vector<Placed> tile(Node n) {
    const Rows at = data(n);
    const Ints repeats = constant_ints(n.input(1));
    need(repeats.size() > static_cast<size_t>(at.axis), kUnknown);
    need(repeats[static_cast<size_t>(at.axis)] == 1);
    return {at};
  }

  std::vector<Placed> gather(Node n) {
    const Placed x = in(n, 0), picks = in(n, 1);
    const int64_t axis = normal_axis(n, n.attrs().integer("axis", 0), rank_of(n.input(0)));
    const int64_t picked = rank_of(n.input(1));
    need(!x || !picks);
    if (picks) return {Rows{picks->axis + axis, picks->each}};
    need(axis != x->axis);
    return {Rows{x->axis + (axis < x->axis ? picked - 1 : 0), x->each}};
  }

  std::vector<Placed> gather_elements(Node n) {
    const int64_t axis = normal_axis(n, n.attrs().integer("axis", 0), rank_of(n.input(0)));
    need(in(n, 0) && in(n, 0) == in(n, 1) && in(n, 0)->axis != axis);
    return {in(n, 0)};
  }

  std::vector<Placed> one_hot(Node n) {
    const Rows at = data(n);
    const int64_t axis = normal_axis(n, n.attrs().integer("axis", -1), rank_of(n.input(0)) + 1);
    return {Rows{at.axis + (axis <= at.axis ? 1 : 0), at.each}};
  }

  std::vector<Placed> trilu(Node n) {
    const Rows at = data(n);
    need(at.axis < rank_of(n.input(0)) - 2);
    return {at};
  }

  // --- products ----------------------------------------------------------------------------------

  std::vector<Placed> matmul(Node n) {
    const Value a = n.input(0), b = n.input(1);
    const int64_t ranks[] = {rank_of(a), rank_of(b)};
    const Placed at[] = {place(a), place(b)};
    if (at[0] && at[1]) {
      const int64_t from_end = at[0]->axis - ranks[0];
      need(from_end < -2 && from_end == at[1]->axis - ranks[1] && at[0]->each == at[1]->each);
      return {Rows{std::max(ranks[0], ranks[1]) + from_end, at[0]->each}};
    }
    const bool first = at[0].has_value();
    const Rows rows = first ? *at[0] : *at[1];
    const int64_t rank = first ? ranks[0] : ranks[1], other = first ? ranks[1] : ranks[0];
    const int64_t from_end = rows.axis - rank;
    need(rank > 1 && from_end != (first ? -1 : -2));  // the axis that is summed over
    if (from_end < -2) need(is_broadcast(first ? b : a, from_end), kNumber);
    if (other == 1) {  // the product has an axis less
      const bool behind = !first && from_end == -1;
      return {Rows{behind ? rows.axis - 1 : rows.axis, rows.each}};
    }
    return {Rows{std::max(rank, other) + from_end, rows.each}};
  }

  std::vector<Placed> einsum(Node n) {
    std::string text = n.attrs().string("equation");
    std::erase(text, ' ');
    const size_t arrow = text.find("->");
    need(arrow != std::string::npos && text.find('.') == std::string::npos, kUnknown);
    const std::string result = text.substr(arrow + 2);
    std::vector<std::string> terms(1);
    for (const char c : text.substr(0, arrow)) {
      if (c == ',') {
        terms.emplace_back();
      } else {
        terms.back() += c;
      }
    }
    need(static_cast<int>(terms.size()) == n.input_count(), kUnknown);
    char letter = 0;
    Placed at;
    for (int i = 0; i < n.input_count(); ++i) {
      const Placed here = in(n, i);
      if (!here) continue;
      const std::string& term = terms[static_cast<size_t>(i)];
      need(static_cast<int64_t>(term.size()) == rank_of(n.input(i)), kUnknown);
      const char c = term[static_cast<size_t>(here->axis)];
      need(letter == 0 || (letter == c && at->each == here->each));
      letter = c;
      at = here;
    }
    for (int i = 0; i < n.input_count(); ++i) {
      const auto uses = std::count(terms[static_cast<size_t>(i)].begin(),
                                   terms[static_cast<size_t>(i)].end(), letter);
      need(uses == (in(n, i) ? 1 : 0));
    }
    need(std::count(result.begin(), result.end(), letter) == 1);
    return {Rows{static_cast<int64_t>(result.find(letter)), at->each}};
  }

  // --- layers ------------------------------------------------------------------------------------

  std::vector<Placed> images(Node n) {
    const Rows at = data(n);
    need(at.axis == 0);
    return {at};
  }

  std::vector<Placed> max_pool(Node n) {
    need(!n.output(1), kNumber);  // places, counted through all rows
    return images(n);
  }

  std::vector<Placed> resize(Node n) {
    const Rows at = data(n);
    const Ints axes = n.attrs().ints("axes", {});
    const int64_t rank = rank_of(n.input(0));
    if (!axes.empty()) {
      for (const int64_t axis : axes) need(normal_axis(n, axis, rank) != at.axis);
      return {at};
    }
    const Tensor* scales = constant(n.input(2));
    need(
        scales != nullptr && !n.input(3) && scales->dtype() == DType::f32 && scales->size() == rank,
        kUnknown);
    need(scales->data<float>()[at.axis] == 1);
    return {at};
  }

  /// Initial states of zeros, which are the rule where there are none, but of a fixed batch.
  void leave_out_zeros(Node n) const {
    for (const int i : {5, 6}) {
      const Tensor* state = constant(n.input(i));
      if (state == nullptr || state->dtype() != DType::f32) continue;
      const auto* p = state->data<float>();
      if (std::all_of(p, p + state->size(), [](float x) { return x == 0; }))
        n.set_input(i, Value());
    }
  }

  std::vector<Placed> recurrent(Node n) {
    const bool first = n.attrs().integer("layout", 0) != 0;
    need(in(n, 0) && in(n, 0)->axis == (first ? 0 : 1));
    const int64_t each = in(n, 0)->each;
    const Rows state{first ? 0 : 1, each};
    for (int i = 1; i < n.input_count(); ++i) {
      if (!n.input(i)) continue;
      if (i == 4) {
        need(in(n, i) == Placed(Rows{0, each}), kNumber);
      } else if (i == 5 || i == 6) {
        need(in(n, i) == Placed(state), kNumber);
      } else {
        need(!in(n, i));
      }
    }
    return {Rows{first ? 0 : 2, each}, state, state};
  }

  // --- shapes ------------------------------------------------------------------------------------

  std::vector<Placed> flatten(Node n) {
    const Rows at = data(n);
    const int64_t rank = rank_of(n.input(0));
    int64_t axis = integer_of(n, "axis");
    axis += axis < 0 ? rank : 0;
    need(at.axis == 0 && axis > 0);
    const auto more = product(n.input(0).shape(), 1, static_cast<size_t>(axis));
    need(more && *more > 0, kUnknown);
    return {Rows{0, at.each * *more}};
  }

  std::vector<Placed> squeeze(Node n) {
    const Rows at = data(n);
    need(n.input(1) != Value(), kUnknown);
    int64_t before = 0;
    for (int64_t axis : constant_ints(n.input(1))) {
      axis = normal_axis(n, axis, rank_of(n.input(0)));
      need(axis != at.axis);
      before += axis < at.axis ? 1 : 0;
    }
    return {Rows{at.axis - before, at.each}};
  }

  std::vector<Placed> unsqueeze(Node n) {
    const Rows at = data(n);
    const int64_t rank = rank_of(n.output(0));
    std::set<int64_t> added;
    for (const int64_t axis : constant_ints(n.input(1))) added.insert(normal_axis(n, axis, rank));
    int64_t old = 0;
    for (int64_t axis = 0; axis < rank; ++axis) {
      if (added.count(axis) != 0) continue;
      if (old++ == at.axis) return {Rows{axis, at.each}};
    }
    lose(kUnknown);
  }

  /// The one axis of these extents that is that of the rows; the others do not depend on them.
  std::optional<int64_t> axis_of(const Elements& extents) const {
    std::optional<int64_t> found;
    for (size_t i = 0; i < extents.size(); ++i) {
      if (is_batch(extents[i])) {
        need(!found);
        found = static_cast<int64_t>(i);
      } else {
        need(extents[i].number || !extents[i].symbol.empty(), kNumber);
      }
    }
    return found;
  }

  std::vector<Placed> constant_of_shape(Node n) {
    const auto extents = elements_of(n.input(0));
    need(extents.has_value(), kNumber);
    const auto axis = axis_of(*extents);
    return {axis ? Placed(Rows{*axis, 1}) : Placed()};
  }

  /// What Expand takes for the extent of the rows becomes 1: as it is.
  void rewrite_expand(Node n) {
    const Placed at = in(n, 0);
    const Tensor* target = constant(n.input(1));
    if (!at || target == nullptr) return;
    Ints extents = target->to_ints();
    const int64_t axis = at->axis - rank_of(n.input(0)) + static_cast<int64_t>(extents.size());
    if (axis < 0 || extents[static_cast<size_t>(axis)] == 1) return;
    need(extents[static_cast<size_t>(axis)] == rows_ * at->each, kNumber);
    extents[static_cast<size_t>(axis)] = 1;
    n.set_input(1, ints(graph_, extents));
  }

  std::vector<Placed> expand(Node n) {
    need(!in(n, 1));
    const Value x = n.input(0);
    const int64_t rank = rank_of(n.output(0));
    const Placed at = place(x);
    std::optional<int64_t> axis;
    if (is_size(n.input(1))) {
      const auto extents = elements_of(n.input(1));
      need(extents.has_value(), kNumber);
      axis = axis_of(*extents);
      if (axis) *axis += rank - static_cast<int64_t>(extents->size());
    }
    if (!at) {
      if (axis) need(is_broadcast(x, *axis - rank), kNumber);
      return {axis ? Placed(Rows{*axis, 1}) : Placed()};
    }
    const int64_t there = at->axis + rank - rank_of(x);
    need(!axis || (*axis == there && at->each == 1));
    return {Rows{there, at->each}};
  }

  /// How Reshape moves rows, and what its shape has to be for any number of them.
  struct Reshaped {
    Rows at;
    Ints target{};  ///< empty: as it is
  };

  Reshaped reshaped(Node n) const {
    const Rows at = data(n);
    const Value x = n.input(0);
    const auto extents = elements_of(n.input(1));
    need(extents.has_value() && rank_of(x) > 0, kUnknown);
    const Shape& from = x.shape();
    const auto axis = static_cast<size_t>(at.axis);
    const bool allow_zero = integer_of(n, "allowzero") != 0;
    need(extents->size() > axis, kMixes);
    // By place: a number, or the extent of x that 0 stands for; no number: -1, or not known.
    Shape to;
    bool inferred = false;
    for (size_t i = 0; i < extents->size(); ++i) {
      const Element& e = (*extents)[i];
      const bool copies = e.number == 0 && !allow_zero;
      need(!copies || i < from.size(), kUnknown);
      inferred = inferred || e.number == -1;
      to.push_back(copies           ? from[i]
                   : e.number == -1 ? Dim()
                   : e.number       ? Dim(*e.number)
                                    : Dim::symbol(e.symbol));
    }
    for (size_t i = 0; i < axis; ++i) need(provably_equal(to[i], from[i]));
    const Element& lead = (*extents)[axis];
    const bool copied = lead.number == 0 && !allow_zero;
    const auto each = product(from, axis + 1, from.size());
    const auto rest = product(to, axis + 1, to.size());
    const bool whole = is_batch(lead) && at.each == 1;
    if (each && rest) {
      need(*rest > 0 && (at.each * *each) % *rest == 0);
      const Rows there{at.axis, at.each * *each / *rest};
      if (copied || whole) need(there.each == at.each);
      if (lead.number == -1 || copied || (is_batch(lead) && there.each == 1)) return {there};
      need(lead.number && *lead.number == rows_ * there.each && !inferred, kNumber);
      return {there, with(*extents, axis, -1)};
    }
    const bool same_rest =
        std::equal(from.begin() + at.axis + 1, from.end(), to.begin() + at.axis + 1, to.end(),
                   [](const Dim& a, const Dim& b) { return provably_equal(a, b); });
    if (copied || whole || (lead.number == -1 && same_rest)) return {at};
    need(lead.number && *lead.number > 0 && *lead.number % rows_ == 0, kNumber);
    if (*lead.number == rows_ * at.each && axis < from.size() && !allow_zero)
      return {at, with(*extents, axis, 0)};
    return resolved(at, *extents, to, axis, each);
  }

  /// The rest has a -1, which the leading extent decides: each is written as the other is now.
  Reshaped resolved(const Rows& at, Elements extents, const Shape& to, size_t axis,
                    std::optional<int64_t> each) const {
    need(each.has_value(), kNumber);
    const int64_t more = *extents[axis].number / rows_;
    int64_t known = more;
    std::optional<size_t> open;
    for (size_t i = axis + 1; i < to.size(); ++i) {
      if (to[i].known()) {
        known *= to[i].value();
      } else {
        need(!open && extents[i].number == -1, kNumber);
        open = i;
      }
    }
    need(open && known > 0 && (at.each * *each) % known == 0, kNumber);
    extents[*open].number = at.each * *each / known;
    return {{at.axis, more}, with(extents, axis, -1)};
  }

  static Ints with(const Elements& extents, size_t axis, int64_t lead) {
    Ints target;
    for (const Element& e : extents) {
      need(e.number.has_value(), kNumber);
      target.push_back(*e.number);
    }
    target[axis] = lead;
    return target;
  }

  void rewrite_reshape(Node n) {
    const Ints target = reshaped(n).target;
    if (!target.empty()) n.set_input(1, ints(graph_, target));
  }

  std::vector<Placed> reshape(Node n) {
    const Reshaped result = reshaped(n);
    need(result.target.empty(), kNumber);
    return {result.at};
  }

  Graph& graph_;
  std::string symbol_;
  int64_t rows_;
  std::unordered_map<uint32_t, Rows> placed_;  // by value
  std::set<uint32_t> sizes_;                   // values that hold the number of rows
};

}  // namespace

int64_t fixed_batch(const onnx::GraphProto& graph) {
  std::set<std::string> initializers;
  for (const auto& tensor : graph.initializer()) initializers.insert(tensor.name());
  int64_t rows = 0;
  for (const auto& input : graph.input()) {
    if (initializers.count(input.name()) != 0) continue;
    const auto& tensor = input.type().tensor_type();
    if (!input.type().has_tensor_type() || tensor.shape().dim_size() == 0) return 0;
    const int64_t first =
        tensor.shape().dim(0).has_dim_value() ? tensor.shape().dim(0).dim_value() : 0;
    if (first < 1 || (rows != 0 && rows != first)) return 0;
    rows = first;
  }
  return rows;
}

std::string batch_symbol(const onnx::GraphProto& graph) {
  std::set<std::string> taken;
  for (const auto& input : graph.input()) {
    for (const auto& dim : input.type().tensor_type().shape().dim()) taken.insert(dim.dim_param());
  }
  std::string name = "batch";
  while (taken.count(name) != 0) name += "_";
  return name;
}

std::string open_batch(Graph& graph, const std::string& symbol, int64_t rows) {
  try {
    Follower(graph, symbol, rows).follow();
    return "";
  } catch (const Lost& lost) {
    return lost.why;
  } catch (const ModelError& error) {  // of inference, once the number is open
    return error.parts().what;
  } catch (const ShapeError& error) {
    return fmt::format("{} '{}' holds it", error.parts().op, error.parts().node);
  }
}

}  // namespace steep
