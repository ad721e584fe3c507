#include "autodiff/recognise_scan.h"

#include <optional>
#include <vector>

#include "ops/build.h"

namespace steep {
namespace {

constexpr Pattern kCombined("Add{Mul{factor, before}, here}"), kProduct("Mul{before, here}"),
    kSlice("Slice(x, starts, ends, axes, ...)"), kConcat("Concat(first, rest)"),
    kRecurrence("s: steep.Recurrence(b, a)"), kTransposed("y: Transpose(x)");

/// The extent of axis 0; 0 if it is unknown.
int64_t count_of(Value v) {
  const auto& shape = v.type().shape;
  return shape && !shape->empty() && shape->front().known() ? shape->front().value() : 0;
}

std::optional<int64_t> one_number(Value v) {
  const Tensor* t = constant(v);
  return t != nullptr && t->size() == 1 ? std::optional(t->to_ints()[0]) : std::nullopt;
}

/// Elements start, start + step, … of axis 0.
struct Part {
  int64_t start = 0, step = 1, count = 0;
};

/// Whether v is this part of x, which has more elements.
bool is_part(Value v, Value x, const Part& part) {
  const auto m = match(kSlice, v);
  if (!m || (*m)["x"] != x || count_of(v) != part.count) return false;
  const Value steps = v.producer().input(4);
  const auto start = one_number((*m)["starts"]), axis = one_number((*m)["axes"]);
  const std::optional<int64_t> step = steps ? one_number(steps) : 1;
  return start == part.start && axis == 0 && (part.count == 1 || step == part.step);
}

/// What a part is of; no value if v is not a slice.
Value whole_of(Value v) {
  const auto m = match(kSlice, v);
  return m ? (*m)["x"] : Value();
}

/// The scan of (a[i], b[i]) by index, of which a step is found.
struct Scan {
  Value a, b, even, odd;
  int64_t count = 0;

  int64_t pairs() const { return count / 2; }

  /// Whether v is the b of neighbours: a[2i+1] b[2i] + b[2i+1].
  bool is_b_of_pairs(Value v) const {
    const auto accept = [this](const Match& m) {
      return is_part(m["factor"], a, {1, 2, pairs()}) && is_part(m["before"], b, {0, 2, pairs()}) &&
             is_part(m["here"], b, {1, 2, pairs()});
    };
    return match(kCombined, v.producer(), Match(), accept);
  }

  /// Whether v is the a of neighbours: a[2i] a[2i+1].
  bool is_a_of_pairs(Value v) const {
    const auto accept = [this](const Match& m) {
      return is_part(m["before"], a, {0, 2, pairs()}) && is_part(m["here"], a, {1, 2, pairs()});
    };
    return match(kProduct, v.producer(), Match(), accept);
  }

  /// Whether the odd results are the scan of neighbours.
  bool has_odd() const {
    if (pairs() == 1) return is_b_of_pairs(odd);
    const auto m = match(kRecurrence, odd);
    return m && integer_of(m->node("s"), "axis") == 0 && integer_of(m->node("s"), "reverse") == 0 &&
           is_b_of_pairs((*m)["b"]) && is_a_of_pairs((*m)["a"]);
  }

  /// Whether the even results are b[0], and a[i] s[i-1] + b[i] for i = 2, 4, ….
  bool has_even() const {
    if (count == 2) return is_part(even, b, {0, 1, 1});
    const int64_t rest = (count - 1) / 2;
    const auto m = match(kConcat, even);
    if (!m || integer_of(even.producer(), "axis") != 0 || !is_part((*m)["first"], b, {0, 1, 1}))
      return false;
    const auto accept = [this, rest](const Match& found) {
      const Value before = found["before"];
      const bool follows = rest == pairs() ? before == odd : is_part(before, odd, {0, 1, rest});
      return follows && is_part(found["factor"], a, {2, 2, rest}) &&
             is_part(found["here"], b, {2, 2, rest});
    };
    return match(kCombined, (*m)["rest"].producer(), Match(), accept);
  }
};

/// Values that may be the factors of the scan: those of which `odd`, or its recurrence, multiplies
/// parts.
std::vector<Value> candidates(Value odd) {
  if (const auto m = match(kRecurrence, odd)) {
    const auto product = match(kProduct, (*m)["a"]);
    return {product ? whole_of((*product)["here"]) : Value()};
  }
  const auto m = match(kCombined, odd);
  if (!m) return {};
  return {whole_of((*m)["factor"]), whole_of((*m)["before"])};
}

bool same_type(Value a, Value b) {
  const auto &of_a = a.type().shape, &of_b = b.type().shape;
  return a.dtype() == b.dtype() && of_a && of_b && provably_equal(*of_a, *of_b);
}

/// Whether `whole` has the elements of `even` and `odds`, by turns, along axis 0.
bool interleaves(const Match& m, Value whole, Value odds) {
  const Value even = m["even"];
  for (const char* name : {"evens", "odds"}) {
    if (one_number(m.node(name).input(1)) != 1) return false;
  }
  const auto &from = even.type().shape, &to = whole.type().shape;
  if (integer_of(m.node("both"), "axis") != 1 || !from || !to || from->size() != to->size() ||
      !same_type(even, odds) || count_of(whole) != 2 * count_of(even)) {
    return false;
  }
  for (size_t i = 1; i < from->size(); ++i) {
    if (!provably_equal((*from)[i], (*to)[i])) return false;
  }
  return true;
}

/// Whether the node adds one element behind the last of axis 0, and nothing else.
bool adds_one_behind(Node pad) {
  const Tensor* by = constant(pad.input(1));
  if (by == nullptr || pad.input(3) || text_of(pad, "mode") != "constant") return false;
  Ints expected(static_cast<size_t>(by->size()));
  expected[expected.size() / 2] = 1;
  return by->to_ints() == expected;
}

/// s of (a, b) along axis 0. If both are transposed alike, their operands need no copy for it.
Value recurrence(Value a, Value b) {
  const auto of_a = match(kTransposed, a), of_b = match(kTransposed, b);
  const auto perm_of = [](const Match& m) { return m.node("y").attrs().ints("perm"); };
  if (!of_a || !of_b || perm_of(*of_a) != perm_of(*of_b) || perm_of(*of_a).empty())
    return apply("steep.Recurrence", {b, a}, {{"axis", int64_t{0}}});
  const Ints perm = perm_of(*of_a);
  const Value s = apply("steep.Recurrence", {(*of_b)["x"], (*of_a)["x"]}, {{"axis", perm.front()}});
  return transpose(s, perm);
}

/// Whether a step of a scan is there, by its results at even and odd indices.
bool make_recurrence(const Match& m, Value y, Value& result) {
  const Value even = m["even"], odd = m["odd"];
  const int64_t count = count_of(y);
  if (count < 2 || count_of(even) != (count + 1) / 2 || count_of(odd) != count / 2) return false;
  if (y.dtype() != DType::f32 && y.dtype() != DType::f64) return false;
  Value first = even;
  if (const auto both = match(kConcat, even); both && count > 2) first = (*both)["first"];
  const Value b = whole_of(first);
  if (!b || !same_type(b, y)) return false;
  for (const Value a : candidates(odd)) {
    if (!a || !same_type(a, b)) continue;
    const Scan scan{.a = a, .b = b, .even = even, .odd = odd, .count = count};
    if (!scan.has_odd() || !scan.has_even()) continue;
    result = recurrence(a, b);
    return true;
  }
  return false;
}

}  // namespace

bool recognise_scan(const Match& m, Value& result) {
  const Value y = m["y"];
  return interleaves(m, y, m["odd"]) && make_recurrence(m, y, result);
}

bool recognise_odd_scan(const Match& m, Value& result) {
  const Value y = m["y"], whole = m["whole"];
  return interleaves(m, whole, m["padded"]) && adds_one_behind(m.node("padded")) &&
         is_part(y, whole, {0, 1, count_of(whole) - 1}) && make_recurrence(m, y, result);
}

}  // namespace steep
