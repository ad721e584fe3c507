// GridSample from gathered elements: along each axis a point has a few taps, and the products of
// tap weights are the weights of elements. Jaderberg et al. 2015; cubic weights: Keys 1981.
#include "ops/build.h"
#include "ops/parts.h"
#include "ops/positions.h"

namespace steep {
namespace {

/// Indices of elements along one axis and their weights, both [N, points].
struct Tap {
  Value index;   // int64, within the axis
  Value weight;  // 0 for elements outside
};

Value floor(Value x) { return apply("Floor", {x}); }

/// Coordinates along one axis of `count` elements.
class Axis {
 public:
  Axis(Node n, Value count, DType dtype)
      : mode_(text_of(n, "mode")),
        padding_(text_of(n, "padding_mode")),
        align_(integer_of(n, "align_corners") != 0),
        count_(cast(count, dtype)),
        last_(count_ - 1.0),
        low_(scalar(count.graph(), align_ ? 0 : -0.5, dtype)),
        high_(align_ ? last_ : last_ + 0.5) {}

  std::vector<Tap> taps(Value coordinate) const {
    constexpr double kFar = 1e9;  // non-finite values count as far outside, as in PyTorch
    Value x = align_ ? (coordinate + 1.0) * 0.5 * last_ : ((coordinate + 1.0) * count_ - 1.0) * 0.5;
    x = where(less(apply("Abs", {x}), kFar), x, -kFar);
    if (mode_ == "nearest") x = apply("Round", {x});
    // Cubic mode clamps each of its taps to the border instead, as PyTorch and ONNX Runtime do.
    if (padding_ == "border" && mode_ != "cubic") x = where(outside(x), bounded(x), x);
    if (padding_ == "reflection") x = where(outside(x), reflect(x), x);
    if (padding_ != "zeros" && mode_ == "linear") x = inside_or_end(x);
    const Value base = floor(x), r = x - base;
    if (mode_ == "nearest") return {tap(base, {})};
    if (mode_ != "cubic") return {tap(base, 1.0 - r), tap(base + 1.0, r)};
    constexpr double kA = -0.75;
    auto near = [](Value d) { return ((kA + 2) * d - (kA + 3)) * d * d + 1.0; };
    auto far = [](Value d) { return ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA; };
    return {tap(base - 1.0, far(r + 1.0)), tap(base, near(r)), tap(base + 1.0, near(1.0 - r)),
            tap(base + 2.0, far(2.0 - r))};
  }

 private:
  Value outside(Value x) const { return apply("Or", {less(x, low_), greater(x, high_)}); }
  Value bounded(Value x) const { return apply("Clip", {x, low_ * 0.0, last_}); }

  /// Clamps x to the first and last element. The slope is 0 at these and beyond, as in PyTorch.
  Value inside_or_end(Value x) const {
    const Value inside = apply("And", {greater(x, 0), less(x, last_)});
    return where(inside, x, where(greater(x, 0), last_, 0));
  }

  /// Reflects x at both ends as often as needed. An axis with one element gives that element.
  Value reflect(Value x) const {
    const Value span = high_ - low_, wide = greater(span, 0.0);
    const Value distance = apply("Abs", {x - low_}), safe = where(wide, span, 1.0);
    const Value turns = floor(distance / safe), rest = distance - turns * safe;
    const Value odd = turns - floor(turns * 0.5) * 2.0;
    return where(wide, where(greater(odd, 0.5), high_ - rest, low_ + rest), low_);
  }

  /// The element at `place`, an integral number. A null `weight` means 1.
  Tap tap(Value place, Value weight) const {
    if (padding_ == "reflection") place = where(outside(place), floor(reflect(place)), place);
    const Value index = bounded(place);
    if (padding_ == "zeros") {
      const Value there = equal(index, place);
      weight = weight ? where(there, weight, 0.0) : cast(there, place.dtype());
    }
    return {cast(index, DType::i64), weight};
  }

  std::string mode_, padding_;
  bool align_;
  Value count_, last_, low_, high_;
};

Value product(Value a, Value b) { return a && b ? a * b : a ? a : b; }

}  // namespace

Value grid_points(Node n, Value x, Value grid) {
  Graph& g = x.graph();
  const int64_t rank = x.rank() - 2;
  // Coordinates in the grid start with the last axis.
  std::vector<Tap> taps;
  for (int64_t a = 0; a < rank; ++a) {
    const Value count = extent_of(x, 2 + a);
    Value places = apply("Gather", {grid, scalar(g, static_cast<double>(rank - 1 - a), DType::i64)},
                         {{"axis", rank + 1}});
    places = apply("Flatten", {places}, {{"axis", int64_t{1}}});
    std::vector<Tap> all;
    for (const Tap& t : Axis(n, count, x.dtype()).taps(places)) {
      if (a == 0) all.push_back(t);
      for (const Tap& before : taps)
        all.push_back({before.index * count + t.index, product(before.weight, t.weight)});
    }
    taps = std::move(all);
  }
  const Value elements = planes(x), shape = shape_of(elements);
  const Value heading = part(shape, 0, 2);
  Value y;
  for (const Tap& t : taps) {
    const Value points = as_vector(extent_of(t.index, 1));
    const Value everywhere = concat({heading, points}, 0);
    const Value index = apply("Expand", {unsqueeze(t.index, {1}), everywhere});
    Value v = apply("GatherElements", {elements, index}, {{"axis", int64_t{2}}});
    if (t.weight) v = v * unsqueeze(t.weight, {1});
    y = y ? y + v : v;
  }
  const Value places = part(shape_of(grid), 1, rank + 1);
  return reshape(y, concat({heading, places}, 0));
}

}  // namespace steep
