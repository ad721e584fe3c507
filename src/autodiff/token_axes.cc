#include "autodiff/token_axes.h"

#include <algorithm>
#include <string>
#include <unordered_set>

#include "ops/build.h"

namespace steep {
namespace {

bool is_one(const Dim& d) { return d.known() && d.value() == 1; }

/// Nothing where it has no name.
std::optional<Dim> product(const Dim& a, const Dim& b) {
  if (is_one(a)) return b;
  if (is_one(b)) return a;
  if (a.known() && b.known()) return Dim(a.value() * b.value());
  return {};
}

/// How many of the first `parts` multiply to `extent`.
std::optional<size_t> parts_of(const std::vector<AxisPart>& parts, const Dim& extent) {
  std::optional<Dim> size = Dim(1);
  for (size_t n = 0; size; ++n) {
    if (provably_equal(*size, extent)) return n;
    if (n == parts.size()) return {};
    size = product(*size, parts[n].extent);
  }
  return {};
}

/// The same elements under another shape: each part lies in one axis, and one axis may be of an
/// extent that is not known.
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

bool reshapes(const std::string& op) {
  static const std::unordered_set<std::string> kReshapes = {"Reshape", "Flatten", "Squeeze",
                                                            "Unsqueeze", "Identity"};
  return kReshapes.count(op) != 0;
}

bool has_shape(Value v) { return v && v.type().shape.has_value(); }

std::optional<TokenAxes> before_transpose(Node n, const TokenAxes& axes) {
  const Ints perm = n.attrs().ints("perm", {});
  if (perm.size() != axes.size()) return {};
  TokenAxes result(axes.size());
  for (size_t i = 0; i < perm.size(); ++i) result[static_cast<size_t>(perm[i])] = axes[i];
  return result;
}

/// Of a node that takes part of one axis.
std::optional<TokenAxes> before_taking(Node n, TokenAxes axes) {
  const Value x = n.input(0);
  const int64_t rank = x.rank();
  Ints taken;
  if (n.op() == "Slice") {
    const Tensor* given = constant(n.input(3));
    if (given == nullptr) return {};
    taken = given->to_ints();
  } else {
    taken = {integer_of(n, "axis")};
  }
  for (const int64_t any : taken) {
    const auto axis = static_cast<size_t>(normal_axis(n, any, rank));
    if (n.op() == "Gather") {
      if (!has_shape(n.input(1)) || n.input(1).rank() > 1) return {};
      if (n.input(1).rank() == 0)
        axes.insert(axes.begin() + static_cast<std::ptrdiff_t>(axis), {{}});
    }
    if (axis >= axes.size() || is_of_tokens(axes[axis])) return {};
    axes[axis] = {{Counts::other, x.shape()[axis]}};
  }
  return axes;
}

std::optional<TokenAxes> before_expand(Value x, Value y, TokenAxes axes) {
  if (x.rank() != y.rank()) return {};
  for (size_t i = 0; i < axes.size(); ++i) {
    if (provably_equal(x.shape()[i], y.shape()[i])) continue;
    if (!is_one(x.shape()[i]) || is_of_tokens(axes[i])) return {};
    axes[i].clear();
  }
  return axes;
}

/// The operand of a result's shape in arithmetic with one of one axis at most; -1 for other nodes.
int scaled_operand(Node n, Value y) {
  static const std::unordered_set<std::string> kArithmetic = {"Add", "Sub", "Mul", "Div"};
  if (kArithmetic.count(n.op()) == 0) return -1;
  for (const int i : {0, 1}) {
    const Value x = n.input(i), by = n.input(1 - i);
    if (!has_shape(x) || !has_shape(by) || by.rank() > 1 || x.rank() != y.rank()) continue;
    const bool alike = std::equal(x.shape().begin(), x.shape().end(), y.shape().begin(),
                                  [](const Dim& a, const Dim& b) { return provably_equal(a, b); });
    if (alike && (i == 0 || n.op() != "Div")) return i;
  }
  return -1;
}

}  // namespace

std::optional<std::pair<int, TokenAxes>> axes_before(Node n, Value y, const TokenAxes& axes) {
  const std::string& op = n.op();
  const Value x = n.input(0);
  if (!has_shape(x) || !has_shape(y)) return {};
  if (const int scaled = scaled_operand(n, y); scaled >= 0) return {{scaled, axes}};
  std::optional<TokenAxes> found;
  if (op == "Cast") {
    found = axes;
  } else if (reshapes(op)) {
    found = regroup(axes, x.shape());
  } else if (op == "Transpose") {
    found = before_transpose(n, axes);
  } else if (op == "Gather" || op == "Split" || op == "Slice") {
    found = before_taking(n, axes);
  } else if (op == "Expand") {
    found = before_expand(x, y, axes);
  }
  return found ? std::optional(std::pair(0, *found)) : std::nullopt;
}

std::optional<TokenAxes> axes_after(Node n, const TokenAxes& axes) {
  const Value y = n.output(0);
  if (!has_shape(y)) return {};
  if (n.op() == "Cast") return axes;
  if (reshapes(n.op())) return regroup(axes, y.shape());
  if (n.op() != "Transpose") return {};
  const Ints perm = n.attrs().ints("perm", {});
  if (perm.size() != axes.size()) return {};
  TokenAxes result;
  for (const int64_t axis : perm) result.push_back(axes[static_cast<size_t>(axis)]);
  return result;
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
