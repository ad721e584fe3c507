#include "autodiff/token_axes.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "ops/build.h"

namespace steep {
namespace {

/// The product of two extents; nothing when it cannot be expressed as a Dim.
std::optional<Dim> product(const Dim& a, const Dim& b) {
  if (is_one(a)) return b;
  if (is_one(b)) return a;
  if (a.known() && b.known()) return Dim(a.value() * b.value());
  return {};
}

/// How many of the first `parts` have the product `extent`.
std::optional<size_t> parts_of(const std::vector<AxisPart>& parts, const Dim& extent) {
  std::optional<Dim> size = Dim(1);
  for (size_t n = 0; size; ++n) {
    if (provably_equal(*size, extent)) return n;
    if (n == parts.size()) return {};
    size = product(*size, parts[n].extent);
  }
  return {};
}

/// The axes after a reshape to `shape`: each part must lie within one axis, and one axis may have
/// an unknown extent.
std::optional<TokenAxes> regroup(const TokenAxes& axes, const Shape& shape) {
  std::vector<AxisPart> parts;
  for (const auto& axis : axes) parts.insert(parts.end(), axis.begin(), axis.end());
  TokenAxes result(shape.size());
  size_t front = 0, back = shape.size();
  for (; front < back; ++front) {
    const auto n = parts_of(parts, shape[front]);
    if (!n) break;
    const auto end = parts.begin() + static_cast<std::ptrdiff_t>(*n);
    result[front].assign(parts.begin(), end);
    parts.erase(parts.begin(), end);
  }
  std::reverse(parts.begin(), parts.end());
  for (; back > front + 1; --back) {
    const auto n = parts_of(parts, shape[back - 1]);
    if (!n) return {};
    const auto end = parts.begin() + static_cast<std::ptrdiff_t>(*n);
    result[back - 1].assign(parts.begin(), end);
    std::reverse(result[back - 1].begin(), result[back - 1].end());
    parts.erase(parts.begin(), end);
  }
  std::reverse(parts.begin(), parts.end());
  if (front < back) {
    result[front] = parts;
  } else if (!std::all_of(parts.begin(), parts.end(),
                          [](const AxisPart& p) { return is_one(p.extent); })) {
    return {};
  }
  return result;
}

bool is_of_tokens(const std::vector<AxisPart>& axis) {
  return std::any_of(axis.begin(), axis.end(), [](const AxisPart& p) {
    return p.counts != Counts::other && !is_one(p.extent);
  });
}

bool has_shape(Value v) { return v && v.type().shape.has_value(); }

/// The return type of axes_before().
using Before = std::optional<std::pair<int, TokenAxes>>;

Before of_first(std::optional<TokenAxes> axes) {
  if (!axes) return {};
  return std::pair(0, *std::move(axes));
}

Before same_before(Node /*n*/, Value /*y*/, const TokenAxes& axes) { return of_first(axes); }

std::optional<TokenAxes> same_after(Node /*n*/, const TokenAxes& axes) { return axes; }

Before before_reshape(Node n, Value /*y*/, const TokenAxes& axes) {
  return of_first(regroup(axes, n.input(0).shape()));
}

std::optional<TokenAxes> after_reshape(Node n, const TokenAxes& axes) {
  return regroup(axes, n.output(0).shape());
}

Before before_transpose(Node n, Value /*y*/, const TokenAxes& axes) {
  const Ints perm = n.attrs().ints("perm", {});
  if (perm.size() != axes.size()) return {};
  TokenAxes result(axes.size());
  for (size_t i = 0; i < perm.size(); ++i) result[static_cast<size_t>(perm[i])] = axes[i];
  return of_first(std::move(result));
}

std::optional<TokenAxes> after_transpose(Node n, const TokenAxes& axes) {
  const Ints perm = n.attrs().ints("perm", {});
  if (perm.size() != axes.size()) return {};
  TokenAxes result;
  for (const int64_t axis : perm) result.push_back(axes[static_cast<size_t>(axis)]);
  return result;
}

/// Updates the axes for a node that takes part of an axis. Returns false if that is an axis of
/// tokens or sequences.
bool before_taking(Node n, int64_t axis, TokenAxes& axes) {
  const Value x = n.input(0);
  const auto at = static_cast<size_t>(normal_axis(n, axis, x.rank()));
  if (at >= axes.size() || is_of_tokens(axes[at])) return false;
  axes[at] = {{Counts::other, x.shape()[at]}};
  return true;
}

Before before_split(Node n, Value /*y*/, const TokenAxes& axes) {
  TokenAxes result = axes;
  if (!before_taking(n, integer_of(n, "axis"), result)) return {};
  return of_first(std::move(result));
}

Before before_gather(Node n, Value /*y*/, const TokenAxes& axes) {
  const Value index = n.input(1);
  if (!has_shape(index) || index.rank() > 1) return {};
  TokenAxes result = axes;
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), n.input(0).rank());
  if (index.rank() == 0) result.insert(result.begin() + axis, {{}});
  if (!before_taking(n, axis, result)) return {};
  return of_first(std::move(result));
}

Before before_slice(Node n, Value /*y*/, const TokenAxes& axes) {
  const Tensor* numbers = constant(n.input(3));
  if (numbers == nullptr) return {};
  TokenAxes result = axes;
  for (const int64_t axis : numbers->to_ints()) {
    if (!before_taking(n, axis, result)) return {};
  }
  return of_first(std::move(result));
}

Before before_expand(Node n, Value y, const TokenAxes& axes) {
  const Value x = n.input(0);
  if (x.rank() != y.rank()) return {};
  TokenAxes result = axes;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (provably_equal(x.shape()[i], y.shape()[i])) continue;
    if (!is_one(x.shape()[i]) || is_of_tokens(axes[i])) return {};
    result[i].clear();
  }
  return of_first(std::move(result));
}

/// For arithmetic: the operand with the result's shape, if the other operand has at most one axis.
template <bool kEither>
Before before_scaling(Node n, Value y, const TokenAxes& axes) {
  for (const int i : {0, 1}) {
    const Value x = n.input(i), by = n.input(1 - i);
    if (!has_shape(x) || !has_shape(by) || by.rank() > 1 || x.rank() != y.rank()) continue;
    const bool alike = std::equal(x.shape().begin(), x.shape().end(), y.shape().begin(),
                                  [](const Dim& a, const Dim& b) { return provably_equal(a, b); });
    if (alike && (i == 0 || kEither)) return std::pair(i, axes);
  }
  return {};
}

/// An operator that moves the elements of one operand.
struct Moves {
  std::string_view op;
  Before (*before)(Node n, Value y, const TokenAxes& axes);
  /// Null if axes_after() does not support the operator.
  std::optional<TokenAxes> (*after)(Node n, const TokenAxes& axes) = nullptr;
};

constexpr Moves kMoves[] = {
    {"Cast", same_before, same_after},
    {"Identity", before_reshape, after_reshape},
    {"Reshape", before_reshape, after_reshape},
    {"Flatten", before_reshape, after_reshape},
    {"Squeeze", before_reshape, after_reshape},
    {"Unsqueeze", before_reshape, after_reshape},
    {"Transpose", before_transpose, after_transpose},
    {"Split", before_split},
    {"Gather", before_gather},
    {"Slice", before_slice},
    {"Expand", before_expand},
    {"Add", before_scaling<true>},
    {"Sub", before_scaling<true>},
    {"Mul", before_scaling<true>},
    {"Div", before_scaling<false>},
};

/// Null for other operators.
const Moves* find_moves(Node n) {
  const auto* found = std::find_if(std::begin(kMoves), std::end(kMoves),
                                   [&](const Moves& moves) { return moves.op == n.op(); });
  return found == std::end(kMoves) ? nullptr : found;
}

}  // namespace

std::optional<std::pair<int, TokenAxes>> axes_before(Node n, Value y, const TokenAxes& axes) {
  const Moves* moves = find_moves(n);
  if (moves == nullptr || !has_shape(n.input(0)) || !has_shape(y)) return {};
  return moves->before(n, y, axes);
}

std::optional<TokenAxes> axes_after(Node n, const TokenAxes& axes) {
  const Moves* moves = find_moves(n);
  if (moves == nullptr || moves->after == nullptr || !has_shape(n.output(0))) return {};
  return moves->after(n, axes);
}

std::optional<bool> by_place(const TokenAxes& axes, const Dim& sequences, const Dim& tokens) {
  if (axes.size() < 2 || is_of_tokens(axes.back())) return {};
  std::vector<Counts> order;
  for (size_t i = 0; i + 1 < axes.size(); ++i) {
    for (const AxisPart& part : axes[i]) {
      if (is_one(part.extent)) continue;
      if (part.counts == Counts::other) return {};
      order.push_back(part.counts);
    }
  }
  const size_t expected = (is_one(sequences) ? 0 : 1) + (is_one(tokens) ? 0 : 1);
  if (order.size() != expected) return {};
  if (order.size() < 2) return false;
  if (order[0] == order[1]) return {};
  return order[0] == Counts::tokens;
}

}  // namespace steep
