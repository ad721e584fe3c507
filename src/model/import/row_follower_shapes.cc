// Operators that change the shape of a value: Reshape and similar ones.
#include <algorithm>

#include "model/import/row_follower.h"

namespace steep::batch {

std::vector<Placed> RowFollower::flatten(Node n) {
  const Rows at = data(n);
  const int64_t rank = rank_of(n.input(0));
  int64_t axis = integer_of(n, "axis");
  axis += axis < 0 ? rank : 0;
  need(at.axis == 0 && axis > 0);
  const auto more = product(n.input(0).shape(), 1, static_cast<size_t>(axis));
  need(more && *more > 0, kUnknown);
  return {Rows{0, at.each * *more}};
}

std::vector<Placed> RowFollower::squeeze(Node n) {
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

std::vector<Placed> RowFollower::unsqueeze(Node n) {
  const Rows at = data(n);
  const int64_t rank = rank_of(n.output(0));
  std::set<int64_t> new_axes;
  for (const int64_t axis : constant_ints(n.input(1))) new_axes.insert(normal_axis(n, axis, rank));
  int64_t old = 0;
  for (int64_t axis = 0; axis < rank; ++axis) {
    if (new_axes.count(axis) != 0) continue;
    if (old++ == at.axis) return {Rows{axis, at.each}};
  }
  lose(kUnknown);
}

std::optional<int64_t> RowFollower::axis_of(const Elements& extents) const {
  std::optional<int64_t> position;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (is_batch(extents[i])) {
      need(!position);
      position = static_cast<int64_t>(i);
    } else {
      need(extents[i].number || !extents[i].symbol.empty(), kNumber);
    }
  }
  return position;
}

std::vector<Placed> RowFollower::constant_of_shape(Node n) {
  const auto extents = elements_of(n.input(0));
  need(extents.has_value(), kNumber);
  const auto axis = axis_of(*extents);
  return {axis ? Placed(Rows{*axis, 1}) : Placed()};
}

void RowFollower::rewrite_expand(Node n) {
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

std::vector<Placed> RowFollower::expand(Node n) {
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

RowFollower::Reshaped RowFollower::reshaped(Node n) const {
  const Rows at = data(n);
  const Value x = n.input(0);
  const auto extents = elements_of(n.input(1));
  need(extents.has_value() && rank_of(x) > 0, kUnknown);
  const Shape& from = x.shape();
  const auto axis = static_cast<size_t>(at.axis);
  const bool allow_zero = integer_of(n, "allowzero") != 0;
  need(extents->size() > axis, kMixes);
  // For each axis: a number, or the extent of x that a 0 copies; unknown for -1 and unknown
  // elements.
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

RowFollower::Reshaped RowFollower::resolved(const Rows& at, Elements extents, const Shape& to,
                                            size_t axis, std::optional<int64_t> each) const {
  need(each.has_value(), kNumber);
  const int64_t more = *extents[axis].number / rows_;
  int64_t product = more;
  std::optional<size_t> open;
  for (size_t i = axis + 1; i < to.size(); ++i) {
    if (to[i].known()) {
      product *= to[i].value();
    } else {
      need(!open && extents[i].number == -1, kNumber);
      open = i;
    }
  }
  need(open && product > 0 && (at.each * *each) % product == 0, kNumber);
  extents[*open].number = at.each * *each / product;
  return {{at.axis, more}, with(extents, axis, -1)};
}

Ints RowFollower::with(const Elements& extents, size_t axis, int64_t lead) {
  Ints target;
  for (const Element& e : extents) {
    need(e.number.has_value(), kNumber);
    target.push_back(*e.number);
  }
  target[axis] = lead;
  return target;
}

void RowFollower::rewrite_reshape(Node n) {
  const Ints target = reshaped(n).target;
  if (!target.empty()) n.set_input(1, ints(graph_, target));
}

std::vector<Placed> RowFollower::reshape(Node n) {
  const Reshaped result = reshaped(n);
  need(result.target.empty(), kNumber);
  return {result.at};
}

}  // namespace steep::batch
