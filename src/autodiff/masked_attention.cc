#include "autodiff/masked_attention.h"

#include <limits>
#include <unordered_set>
#include <utility>

#include "autodiff/read_rows.h"
#include "ops/build.h"

namespace steep {
namespace {

constexpr double kHides = -1e30;     // from here on a finite mask hides a key, if there is another
constexpr size_t kMostOfMask = 128;  // nodes that make a mask of inputs
constexpr double kMostOfElements = double{1 << 24};

bool equal_extents(Value a, int64_t i, Value b, int64_t j) {
  return provably_equal(a.shape()[static_cast<size_t>(i)], b.shape()[static_cast<size_t>(j)]);
}

bool has_axes(Value v, int64_t rank) { return v && v.type().shape && v.rank() == rank; }

class Matcher {
 public:
  explicit Matcher(const Users& users) : users_(users) {}

  std::optional<MaskedAttention> match(Node softmax) const {
    MaskedAttention a;
    a.softmax = softmax;
    const Value p = softmax.output(0);
    if (!has_axes(p, 4) || p.dtype() != DType::f32) return {};
    const int64_t axis = integer_of(softmax, "axis");
    if ((axis != -1 && axis != 3) || !climb(softmax.input(0), p, a, true)) return {};
    Node reader = only_reader(p);
    if (reader && reader.op() == "steep.Dropout") reader = only_reader(reader.output(0));
    if (!reader || reader.op() != "MatMul" || !has_axes(reader.input(1), 4)) return {};
    a.product = reader;
    // A Where that comes after another mask may show again what that hides.
    for (size_t i = 0; i + 1 < a.masks.size(); ++i) {
      if (a.masks[i].keep) return {};
    }
    return fits(a) ? std::optional(a) : std::nullopt;
  }

 private:
  Node only_reader(Value v) const {
    return !v.graph().is_output(v) && users_[v.id()].size() == 1 ? users_[v.id()][0] : Node();
  }

  /// From the softmax's operand up to the scores. `masks`: may masks still come?
  bool climb(Value x, Value p, MaskedAttention& a, bool masks) const {
    const Node n = x.producer();
    if (!n || !only_reader(x) || !has_axes(x, 4)) return false;
    if (n.op() == "MatMul") {
      a.scores = n;
      return has_axes(n.input(0), 4) && has_axes(n.input(1), 4);
    }
    const auto through = [&](Value side, ScoreMask mask) {
      a.masks.push_back(mask);
      if (climb(side, p, a, masks)) return true;
      a.masks.pop_back();
      return false;
    };
    if (n.op() == "Add" && masks && n.input(0) != n.input(1))
      return through(n.input(0), {n.input(1), {}, {}}) || through(n.input(1), {n.input(0), {}, {}});
    if (n.op() == "Where" && masks) {
      return through(n.input(1), {{}, n.input(0), n.input(2)}) ||
             through(n.input(2), {{}, n.input(0), n.input(1), true});
    }
    const Value by = n.input(1);
    const bool scales = (n.op() == "Mul" || n.op() == "Div") && by.type().shape && by.rank() <= 1;
    return scales && climb(n.input(0), p, a, false);
  }

  /// Operands of the same sequences, keys and values of the same tokens.
  static bool fits(const MaskedAttention& a) {
    const Value q = a.scores.input(0), k = a.scores.input(1), v = a.product.input(1);
    return equal_extents(q, 0, k, 0) && equal_extents(q, 0, v, 0) && equal_extents(k, 3, v, 2) &&
           q != k && has_axes(a.product.output(0), 4) && a.product.input(0) != v;
  }

  const Users& users_;
};

/// Would it take long, next to the step, to look at all of it?
bool is_long(Value mask) {
  double size = 1;
  for (const Dim& d : mask.shape()) size *= d.known() ? static_cast<double>(d.value()) : 1;
  return size > kMostOfElements;
}

}  // namespace

std::optional<MaskedAttention> match_masked_attention(const Users& users, Node softmax) {
  return Matcher(users).match(softmax);
}

Value seen_through(const ScoreMask& mask, Value keys, bool alone) {
  Graph& g = keys.graph();
  const Value given = mask.added ? mask.added : mask.keep;
  if (!has_axes(given, 4) || !equal_extents(given, 0, keys, 0) || !equal_extents(given, 3, keys, 3))
    return {};
  Value m = mask.added;
  if (mask.keep) {
    const Value other = mask.otherwise;
    if (!other.type().shape || other.rank() > 1) return {};
    const bool one = other.rank() == 0 || provably_equal(other.shape()[0], Dim(1));
    if (!one || other.dtype() != DType::f32) return {};
    const Value zero = scalar(g, 0, DType::f32);
    m = mask.inverted ? where(mask.keep, other, zero) : where(mask.keep, zero, other);
  }
  if (m.dtype() != DType::f32 || is_long(m)) return {};
  const auto makers = makers_of_rows(m);
  if (!makers || makers->size() > kMostOfMask) return {};
  const auto any = [&](Value x, const Ints& axes, int64_t keepdims) {
    return apply("ReduceMax", {x, ints(g, axes)}, {{"keepdims", keepdims}});
  };
  const double infinity = std::numeric_limits<double>::infinity();
  Value hidden = equal(m, -infinity);
  if (alone) {  // NaN hides nothing
    const Value low = less_or_equal(m, kHides);
    const Value sees = any(cast(apply("Not", {low}), DType::f32), {-1}, 1);
    hidden = apply("Or", {hidden, apply("And", {low, greater(sees, 0.5)})});
  }
  return any(cast(apply("Not", {hidden}), DType::f32), {1, 2}, 0);
}

bool reads_inputs(Value v, const Dim& sequences) {
  std::vector<Value> open{v};
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const Value x = open.back();
    open.pop_back();
    if (!x || x.role() == Role::constant || !seen.insert(x.id()).second) continue;
    const Node n = x.producer();
    if (!n) {
      const bool weight = is_float(x.dtype()) && (!x.type().shape || x.shape().empty() ||
                                                  !provably_equal(x.shape()[0], sequences));
      if (!weight) return true;
      continue;
    }
    const OpDef* def = find_op(n.op());
    if (def != nullptr && def->dataless) continue;
    for (int i = 0; i < n.input_count(); ++i) open.push_back(n.input(i));
  }
  return false;
}

}  // namespace steep
