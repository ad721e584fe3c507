#include "model/import/row_follower.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "steep/error.h"

namespace steep::batch {

void RowFollower::follow() {
  for (Value input : graph_.inputs()) {
    if (input.type().shape && !input.type().shape->empty() && is_batch(input.shape()[0]))
      placed_[input.id()] = {};
  }
  for (Node n : graph_.nodes()) {
    try {
      visit(n);
    } catch (const Lost& error) {
      throw Lost{fmt::format("{} '{}' {}", n.op(), n.name(), error.why)};
    }
  }
  for (const Output& output : graph_.outputs()) {
    const Placed at = place(output.value);
    if (sizes_.count(output.value.id()) != 0 || (at && *at != Rows{})) {
      throw Lost{fmt::format("output '{}' does not have a row for each row", output.name)};
    }
  }
}

Placed RowFollower::place(Value v) const {
  const auto found = v ? placed_.find(v.id()) : placed_.end();
  return found == placed_.end() ? Placed() : Placed(found->second);
}

void RowFollower::need_same(Node n, int first, int last) const {
  for (int i = first; i < std::min(last, n.input_count()); ++i) need(!in(n, i));
}

void RowFollower::visit(Node n) {
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
  const std::vector<Placed> places = outputs_of(n);
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    const Placed at =
        static_cast<size_t>(i) < places.size() ? places[static_cast<size_t>(i)] : Placed();
    if (!y || !at) continue;
    need(rank_of(y) > at->axis, kUnknown);
    // Guard against oversights: a known extent cannot depend on the batch.
    const Dim& extent = y.shape()[static_cast<size_t>(at->axis)];
    need(!extent.known() && (extent.symbol().empty() || at->each != 1 || is_batch(extent)),
         kNumber);
    placed_[y.id()] = *at;
    if (at->each == 1 && extent.symbol().empty()) name_extent(y, static_cast<size_t>(at->axis));
  }
}

void RowFollower::name_extent(Value y, size_t axis) const {
  Type type = y.type();
  (*type.shape)[axis] = Dim::symbol(symbol_);
  graph_.set_type(y, std::move(type));
}

void RowFollower::infer_anew(Node n) const {
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    const Shape* before = y ? graph_.contents(y) : nullptr;
    if (before != nullptr) graph_.set_contents(y, Shape(before->size()));
  }
  infer_types(n);
}

void RowFollower::note_size(Value y) {
  if (!y) return;
  const auto elements = elements_of(y);
  const bool same =
      elements && std::all_of(elements->begin(), elements->end(), [&](const Element& e) {
        return e.number || (!e.symbol.empty() && e.symbol != symbol_);
      });
  if (!same) sizes_.insert(y.id());
}

bool RowFollower::takes_sizes(Node n) const {
  const std::string& op = n.op();
  const bool shaped = op == "Reshape" || op == "Expand";
  return (shaped && !is_size(n.input(0))) || op == "ConstantOfShape";
}

std::vector<Placed> RowFollower::outputs_of(Node n) {
  using Rule = std::vector<Placed> (RowFollower::*)(Node);
  static const std::unordered_map<std::string_view, Rule> kRules = {
      {"Identity", &RowFollower::same_place},
      {"steep.StopGradient", &RowFollower::same_place},
      {"Reshape", &RowFollower::reshape},
      {"Flatten", &RowFollower::flatten},
      {"Squeeze", &RowFollower::squeeze},
      {"Unsqueeze", &RowFollower::unsqueeze},
      {"Expand", &RowFollower::expand},
      {"ConstantOfShape", &RowFollower::constant_of_shape},
      {"Transpose", &RowFollower::transpose},
      {"MatMul", &RowFollower::matmul},
      {"Einsum", &RowFollower::einsum},
      {"Concat", &RowFollower::concat},
      {"Split", &RowFollower::along_axis},
      {"Slice", &RowFollower::slice},
      {"Pad", &RowFollower::pad},
      {"Tile", &RowFollower::tile},
      {"Gather", &RowFollower::gather},
      {"GatherElements", &RowFollower::gather_elements},
      {"OneHot", &RowFollower::one_hot},
      {"Trilu", &RowFollower::trilu},
      {"QuantizeLinear", &RowFollower::quantise},
      {"DequantizeLinear", &RowFollower::quantise},
      {"steep.FakeQuantize", &RowFollower::quantise},
      {"Softmax", &RowFollower::along_axis},
      {"LogSoftmax", &RowFollower::along_axis},
      {"Hardmax", &RowFollower::along_axis},
      {"LpNormalization", &RowFollower::along_axis},
      {"TopK", &RowFollower::along_axis},
      {"CumSum", &RowFollower::cum_sum},
      {"LayerNormalization", &RowFollower::layer_norm},
      {"ArgMax", &RowFollower::reduce},
      {"ArgMin", &RowFollower::reduce},
      {"Conv", &RowFollower::images},
      {"ConvTranspose", &RowFollower::images},
      {"MaxPool", &RowFollower::max_pool},
      {"AveragePool", &RowFollower::images},
      {"LpPool", &RowFollower::images},
      {"GlobalAveragePool", &RowFollower::images},
      {"GlobalMaxPool", &RowFollower::images},
      {"GlobalLpPool", &RowFollower::images},
      {"BatchNormalization", &RowFollower::images},
      {"InstanceNormalization", &RowFollower::images},
      {"GroupNormalization", &RowFollower::images},
      {"LRN", &RowFollower::images},
      {"DepthToSpace", &RowFollower::images},
      {"SpaceToDepth", &RowFollower::images},
      {"Resize", &RowFollower::resize},
      {"LSTM", &RowFollower::recurrent},
      {"GRU", &RowFollower::recurrent},
      {"RNN", &RowFollower::recurrent},
  };
  if (const auto rule = kRules.find(n.op()); rule != kRules.end()) {
    return (this->*rule->second)(n);
  }
  if (n.op().starts_with("Reduce")) return reduce(n);
  const OpDef* def = find_op(n.op());
  need(def != nullptr && def->elementwise, kUnknown);
  return elementwise(n);
}

std::vector<Placed> RowFollower::elementwise(Node n) {
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

bool RowFollower::is_broadcast(Value v, int64_t axis) const {
  const int64_t rank = rank_of(v);
  return rank + axis < 0 || is_one(v.shape()[static_cast<size_t>(rank + axis)]);
}

std::vector<Placed> RowFollower::along_axis(Node n) {
  const Rows at = data(n);
  need(normal_axis(n, integer_of(n, "axis"), rank_of(n.input(0))) != at.axis);
  return std::vector<Placed>(static_cast<size_t>(n.output_count()), at);
}

Rows RowFollower::data(Node n) const {
  need_same(n, 1);
  need(in(n, 0).has_value());
  return *in(n, 0);
}

Ints RowFollower::constant_ints(Value v) {
  const Tensor* tensor = constant(v);
  need(tensor != nullptr, kUnknown);
  return tensor->to_ints();
}

std::vector<Placed> RowFollower::cum_sum(Node n) {
  const Rows at = data(n);
  for (const int64_t axis : constant_ints(n.input(1)))
    need(normal_axis(n, axis, rank_of(n.input(0))) != at.axis);
  return {at};
}

std::vector<Placed> RowFollower::layer_norm(Node n) {
  const Rows at = data(n);
  const int64_t rank = rank_of(n.input(0));
  need(at.axis < normal_axis(n, integer_of(n, "axis"), rank));
  for (const int i : {1, 2}) {
    if (n.input(i)) need(is_broadcast(n.input(i), at.axis - rank), kNumber);
  }
  return std::vector<Placed>(static_cast<size_t>(n.output_count()), at);
}

std::vector<Placed> RowFollower::reduce(Node n) {
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

std::vector<Placed> RowFollower::transpose(Node n) {
  const Rows at = data(n);
  const int64_t rank = rank_of(n.input(0));
  const Ints perm = n.attrs().ints("perm", {});
  if (perm.empty()) return {Rows{rank - 1 - at.axis, at.each}};
  const auto found = std::find(perm.begin(), perm.end(), at.axis);
  need(found != perm.end(), kUnknown);
  return {Rows{found - perm.begin(), at.each}};
}

std::vector<Placed> RowFollower::concat(Node n) {
  const int64_t axis = normal_axis(n, n.attrs().integer("axis"), rank_of(n.output(0)));
  for (int i = 0; i < n.input_count(); ++i) {
    need(in(n, i).has_value(), kNumber);
    need(*in(n, i) == *in(n, 0) && in(n, 0)->axis != axis);
  }
  return {in(n, 0)};
}

std::vector<Placed> RowFollower::slice(Node n) {
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

std::vector<Placed> RowFollower::pad(Node n) {
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

std::vector<Placed> RowFollower::tile(Node n) {
  const Rows at = data(n);
  const Ints repeats = constant_ints(n.input(1));
  need(repeats.size() > static_cast<size_t>(at.axis), kUnknown);
  need(repeats[static_cast<size_t>(at.axis)] == 1);
  return {at};
}

std::vector<Placed> RowFollower::gather(Node n) {
  const Placed x = in(n, 0), picks = in(n, 1);
  const int64_t axis = normal_axis(n, n.attrs().integer("axis", 0), rank_of(n.input(0)));
  const int64_t index_rank = rank_of(n.input(1));
  need(!x || !picks);
  if (picks) return {Rows{picks->axis + axis, picks->each}};
  need(axis != x->axis);
  return {Rows{x->axis + (axis < x->axis ? index_rank - 1 : 0), x->each}};
}

std::vector<Placed> RowFollower::gather_elements(Node n) {
  const int64_t axis = normal_axis(n, n.attrs().integer("axis", 0), rank_of(n.input(0)));
  need(in(n, 0) && in(n, 0) == in(n, 1) && in(n, 0)->axis != axis);
  return {in(n, 0)};
}

std::vector<Placed> RowFollower::one_hot(Node n) {
  const Rows at = data(n);
  const int64_t axis = normal_axis(n, n.attrs().integer("axis", -1), rank_of(n.input(0)) + 1);
  return {Rows{at.axis + (axis <= at.axis ? 1 : 0), at.each}};
}

std::vector<Placed> RowFollower::trilu(Node n) {
  const Rows at = data(n);
  need(at.axis < rank_of(n.input(0)) - 2);
  return {at};
}

std::vector<Placed> RowFollower::quantise(Node n) {
  const Placed at = in(n, 0);
  need(at.has_value());
  if (rank_of(n.input(1)) == 0) {
    need_same(n, 1);
    return {at};
  }
  const bool blocks = integer_of(n, "block_size") != 0;
  const bool along = normal_axis(n, integer_of(n, "axis"), rank_of(n.input(0))) == at->axis;
  need(!blocks || !along);
  if (!blocks && !along) {
    need_same(n, 1);
    return {at};
  }
  // The scales of blocks have the axes of x.
  const Rows scales{blocks ? at->axis : 0, at->each};
  for (const int i : {1, 2}) {
    if (n.input(i)) need(in(n, i) == Placed(scales), kNumber);
  }
  return {at};
}

std::vector<Placed> RowFollower::matmul(Node n) {
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
  need(rank > 1 && from_end != (first ? -1 : -2));  // the axis of the sum
  if (from_end < -2) need(is_broadcast(first ? b : a, from_end), kNumber);
  if (other == 1) {  // the product has one axis less
    const bool behind = !first && from_end == -1;
    return {Rows{behind ? rows.axis - 1 : rows.axis, rows.each}};
  }
  return {Rows{std::max(rank, other) + from_end, rows.each}};
}

std::vector<Placed> RowFollower::einsum(Node n) {
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

std::vector<Placed> RowFollower::images(Node n) {
  const Rows at = data(n);
  need(at.axis == 0);
  return {at};
}

std::vector<Placed> RowFollower::max_pool(Node n) {
  need(!n.output(1), kNumber);  // indices that count through all rows
  return images(n);
}

std::vector<Placed> RowFollower::resize(Node n) {
  const Rows at = data(n);
  const Ints axes = n.attrs().ints("axes", {});
  const int64_t rank = rank_of(n.input(0));
  if (!axes.empty()) {
    for (const int64_t axis : axes) need(normal_axis(n, axis, rank) != at.axis);
    return {at};
  }
  const Tensor* scales = constant(n.input(2));
  need(scales != nullptr && !n.input(3) && scales->dtype() == DType::f32 && scales->size() == rank,
       kUnknown);
  need(scales->data<float>()[at.axis] == 1);
  return {at};
}

void RowFollower::leave_out_zeros(Node n) const {
  for (const int i : {5, 6}) {
    const Tensor* state = constant(n.input(i));
    if (state == nullptr || state->dtype() != DType::f32) continue;
    const auto* p = state->data<float>();
    if (std::all_of(p, p + state->size(), [](float x) { return x == 0; })) n.set_input(i, Value());
  }
}

std::vector<Placed> RowFollower::recurrent(Node n) {
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

}  // namespace steep::batch
