// Pad(x, pads, value?, axes?): x surrounded by `value` or, in the other modes, by repeated
// elements. Negative pads crop first; only elements that remain are repeated.
#include <algorithm>

#include "ops/positions.h"
#include "ops/simplify.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The index into an axis of `extent` elements that each index `at` repeats; `at` is 0 at the start
/// of the axis.
Value repeated(const std::string& mode, Value extent, Value at) {
  Value last = extent - 1;
  Graph& g = at.graph();
  if (mode == "edge") return apply("Min", {apply("Max", {at, scalar(g, 0, DType::i64)}), last});
  if (mode == "wrap") return apply("Mod", {at, apply("Max", {extent, scalar(g, 1, DType::i64)})});
  Value period = apply("Max", {last * 2, scalar(g, 1, DType::i64)});
  Value there = apply("Mod", {at, period});  // reflect, without repeating the border
  return apply("Min", {there, period - there});
}

/// The index into an axis of `extent` elements for each of the `total` indices of the result.
Value sources(const std::string& mode, Value extent, Value before, Value total) {
  const Value zero = scalar(extent.graph(), 0, DType::i64);
  const Value after = total - extent - before;
  const Value cut = apply("Max", {-before, zero});
  const Value rest = extent - cut - apply("Max", {-after, zero});
  return cut + repeated(mode, rest, positions(total) - apply("Max", {before, zero}));
}

/// Forward gathers along every axis, so the gradient scatters back, one axis after the other.
Value repeated_back(Node n, Value dy, const std::string& mode) {
  Value x = n.input(0), pads = n.input(1);
  const Tensor* axes = constant(n.input(3));
  if (n.input(3) && axes == nullptr) {
    throw ModelError({.what = "The gradient of Pad needs constant axes.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "constant axes",
                      .received = to_string(n.input(3).type()),
                      .remedy = "Make the axes constants of the model."});
  }
  const int64_t count = axes != nullptr ? axes->size() : x.rank();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t axis =
        axes != nullptr ? normal_axis(n, axes->to_ints()[static_cast<size_t>(i)], x.rank()) : i;
    Value before = apply("Gather", {pads, scalar(n.graph(), static_cast<double>(i), DType::i64)});
    Value from = sources(mode, extent_of(x, axis), before, extent_of(dy, axis));
    std::vector<Value> extents;
    for (int64_t a = 0; a < x.rank(); ++a)
      extents.push_back(as_vector(extent_of(a == axis ? x : dy, a)));
    dy = apply("steep.GatherGrad", {dy, from, concat(extents, 0)}, {{"axis", axis}});
  }
  return dy;
}

Grads pad_vjp(Node n, const Grads& dy) {
  const std::string mode = text_of(n, "mode");
  if (mode != "constant") return {repeated_back(n, dy[0], mode)};
  Value pads = n.input(1), axes = n.input(3);
  if (const Tensor* t = constant(pads)) {
    Ints cut = t->to_ints();
    for (int64_t& p : cut) p = -p;
    pads = ints(n.graph(), cut);
  } else {
    pads = -pads;
  }
  // Padding with the negated pads removes the frame.
  Value dx = axes ? apply("Pad", {dy[0], pads, Value(), axes}) : apply("Pad", {dy[0], pads});
  return {dx, Value(), n.input(2) ? sum(dy[0], {}, false) - sum(dx, {}, false) : Value()};
}

/// x, where nothing is added or cropped.
Value pad_simplify(Node n) {
  const Tensor* pads = constant(n.input(1));
  if (pads == nullptr || !provably_same_type(n.input(0), n.output(0))) return {};
  const Ints by = pads->to_ints();
  const bool none = std::all_of(by.begin(), by.end(), [](int64_t p) { return p == 0; });
  return none ? n.input(0) : Value();
}

}  // namespace

extern const OpDef kPad = {.name = "Pad",
                           .attributes = {{"mode", "constant"}},
                           .ranks = ". . e",
                           .sizes = {{1, -kFar}},
                           .settings = {2},
                           .vjp = pad_vjp,
                           .simplify = pad_simplify};

}  // namespace steep
