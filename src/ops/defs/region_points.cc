// RoiAlign (He et al. 2017) from gathered elements: the mean of interpolated samples, or the
// largest of the weighted elements. MaxRoiPool (Girshick 2015) with masks of rows and columns.
#include <algorithm>
#include <limits>

#include "ops/build.h"
#include "ops/parts.h"
#include "ops/positions.h"

namespace steep {
namespace {

/// Indices of elements along one axis and their weights, both [regions, bins x samples].
struct Tap {
  Value index;  // int64, within the axis
  Value weight;
};

/// The samples of all bins along one axis.
struct Samples {
  std::vector<Tap> taps;
  Value in_a_bin;  // the largest number of samples per bin, a vector of one element
  Value counts;    // bool [regions, bins x samples]: samples that the region's bin has
};

/// `begin`, `end`: the start and end of each region, [regions]. `extent`: that of the images, an
/// int64 scalar. With `mean` the weights divide by the number of samples of a bin.
Samples sample(Node n, Value begin, Value end, Value extent, int64_t bins, bool half_pixel,
               bool mean) {
  Graph& g = begin.graph();
  const DType dtype = begin.dtype();
  const int64_t sampling = std::max<int64_t>(integer_of(n, "sampling_ratio"), 0);
  Value size = end - begin;
  // Without the half pixel offset a region has at least the size of one element.
  if (!half_pixel) size = apply("Max", {size, scalar(g, 1, dtype)});
  const Value bin = unsqueeze(size / static_cast<double>(bins), {1, 2});
  const Value none = scalar(g, 0, dtype), one = scalar(g, 1, dtype);
  // [regions, 1, 1]: the number of samples in each bin of a region.
  const Value count = sampling > 0
                          ? expand_like(scalar(g, static_cast<double>(sampling), dtype), bin)
                          : apply("Max", {apply("Ceil", {bin}), none});
  Value most = scalar(g, static_cast<double>(sampling), DType::i64);
  if (sampling == 0) {
    const Value all = concat({reshape(count, {-1}), as_vector(one)}, 0);
    most = cast(apply("ReduceMax", {all}, {{"keepdims", int64_t{0}}}), DType::i64);
  }
  const Value number = unsqueeze(cast(positions(most), dtype), {0, 1});
  const Value which =
      unsqueeze(cast(positions(scalar(g, static_cast<double>(bins), DType::i64)), dtype), {0, 2});
  const Value at_least_one = apply("Max", {count, one});
  Value place = unsqueeze(begin, {1, 2}) + (which + (number + 0.5) / at_least_one) * bin;
  const Value last = cast(extent, dtype) - 1.0;
  const Value near = apply("And", {apply("GreaterOrEqual", {place, scalar(g, -1, dtype)}),
                                   apply("LessOrEqual", {place, last + 1.0})});
  const Value counts = less(number, count + which * 0.0);
  const Value share = where(apply("And", {near, counts}), mean ? 1.0 / at_least_one : one, 0.0);
  place = apply("Clip", {where(near, place, 0.0), none, last});
  const Value base = apply("Floor", {place}), v = place - base;
  const Value next = apply("Min", {base + 1.0, last});
  auto flat = [](Value x) { return apply("Flatten", {x}, {{"axis", int64_t{1}}}); };
  return {{{flat(cast(base, DType::i64)), flat((1.0 - v) * share)},
           {flat(cast(next, DType::i64)), flat(v * share)}},
          as_vector(most),
          flat(counts)};
}

constexpr double kLeast = -std::numeric_limits<double>::infinity();

/// The first maximal element along `axis`; removes the axis.
Value largest(Value x, int64_t axis) {
  const Value at = apply("ArgMax", {x}, {{"axis", axis}});
  return squeeze(apply("GatherElements", {x, at}, {{"axis", axis}}), {axis});
}

Value zero_for_none(Value y) { return where(greater(y, kLeast), y, 0.0); }

}  // namespace

Value region_points(Node n, Value x, Value regions, Value images) {
  Graph& g = x.graph();
  const bool mean = text_of(n, "mode") == "avg";
  const bool half_pixel = text_of(n, "coordinate_transformation_mode") == "half_pixel";
  const double scale = real_of(n, "spatial_scale");
  const int64_t rows = integer_of(n, "output_height");
  const int64_t columns = integer_of(n, "output_width");
  auto side = [&](double i) {
    const Value v =
        apply("Gather", {regions, scalar(g, i, DType::i64)}, {{"axis", int64_t{1}}}) * scale;
    return half_pixel ? v - 0.5 : v;
  };
  const Value height = extent_of(x, 2), width = extent_of(x, 3),
              channels = as_vector(extent_of(x, 1));
  const Samples down = sample(n, side(1), side(3), height, rows, half_pixel, mean);
  const Samples right = sample(n, side(0), side(2), width, columns, half_pixel, mean);

  const Value pixels = reshape(transpose(x, {0, 2, 3, 1}),
                               concat({as_vector(extent_of(x, 0) * height * width), channels}, 0));
  const Value first = unsqueeze(images * height, {1});
  const Value count = part(shape_of(regions), 0);
  auto extents = [&](Value last) {
    return concat({count, ints(g, {rows}), down.in_a_bin, ints(g, {columns}), right.in_a_bin, last},
                  0);
  };
  std::vector<Value> corners;  // [regions, rows, samples, columns, samples, channels]
  for (const Tap& r : down.taps) {
    for (const Tap& c : right.taps) {
      const Value index = unsqueeze((first + r.index) * width, {2}) + unsqueeze(c.index, {1});
      const Value weight = unsqueeze(r.weight, {2, 3}) * unsqueeze(c.weight, {1, 3});
      const Value corner = apply("Gather", {pixels, index}) * weight;
      corners.push_back(reshape(corner, extents(channels)));
    }
  }
  if (mean) {
    const Value all = corners[0] + corners[1] + corners[2] + corners[3];
    return transpose(sum(all, {2, 4}, false), {0, 3, 1, 2});
  }
  const Value counts = apply("And", {unsqueeze(down.counts, {2}), unsqueeze(right.counts, {1})});
  const Value mask = unsqueeze(reshape(counts, extents(ints(g, {1}))), {6});
  for (Value& corner : corners) corner = unsqueeze(corner, {6});
  const Value all = where(mask, concat(corners, 6), kLeast);
  const Value in_a_bin = down.in_a_bin * right.in_a_bin * ints(g, {4});
  return zero_for_none(
      largest(reshape(transpose(all, {0, 5, 1, 3, 2, 4, 6}),
                      concat({count, channels, ints(g, {rows, columns}), in_a_bin}, 0)),
              4));
}

namespace {

/// Which elements of an axis lie in which bin: bool [regions, bins, elements]. `begin`, `end`: the
/// first and the last element of each region, float64.
Value bins_along(Value begin, Value end, Value extent, int64_t bins) {
  Graph& g = begin.graph();
  const Value one = scalar(g, 1, DType::f64);
  const Value size = apply("Max", {end - begin + 1.0, one}) / static_cast<double>(bins);
  auto numbers = [](Value end_of) { return cast(positions(end_of), DType::f64); };
  const Value which = unsqueeze(numbers(scalar(g, static_cast<double>(bins), DType::i64)), {0});
  const Value first = apply("Floor", {which * unsqueeze(size, {1})}) + unsqueeze(begin, {1});
  const Value past = apply("Ceil", {(which + 1.0) * unsqueeze(size, {1})}) + unsqueeze(begin, {1});
  const Value element = unsqueeze(numbers(extent), {0, 1});
  return apply("And", {apply("GreaterOrEqual", {element, unsqueeze(first, {2})}),
                       less(element, unsqueeze(past, {2}))});
}

}  // namespace

Value region_maxima(Node n, Value x, Value regions) {
  Graph& g = x.graph();
  const Ints bins = n.attrs().ints("pooled_shape");
  const double scale = real_of(n, "spatial_scale");
  auto column = [&](double i) {
    return apply("Gather", {regions, scalar(g, i, DType::i64)}, {{"axis", int64_t{1}}});
  };
  auto side = [&](double i) {  // to the nearest element, halves away from zero
    const Value v = cast(column(i), DType::f64) * scale;
    return apply("Sign", {v}) * apply("Floor", {apply("Abs", {v}) + 0.5});
  };
  const Value rows = bins_along(side(2), side(4), extent_of(x, 2), bins.at(0));
  const Value columns = bins_along(side(1), side(3), extent_of(x, 3), bins.at(1));
  const Value images = apply("Gather", {x, cast(column(0), DType::i64)});
  // [regions, channels, height, bins, width], then [regions, channels, bins, height, bins]
  const Value in_rows =
      largest(where(unsqueeze(columns, {1, 2}), unsqueeze(images, {3}), kLeast), 4);
  return zero_for_none(largest(where(unsqueeze(rows, {1, 4}), unsqueeze(in_rows, {2}), kLeast), 3));
}

}  // namespace steep
