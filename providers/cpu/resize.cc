// Resize and steep.ResizeGrad. Along each axis an output element is a weighted sum of a few input
// elements. Their indices and weights are computed when the kernel is built. The gradient is the
// transpose of these sums, with the axes in reverse order.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <span>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

struct Tap {
  int64_t index;
  double weight;
};

/// The resizing of one axis.
struct Axis {
  size_t axis;
  int64_t in, out;
  std::vector<Tap> taps{};        ///< of all output elements, in order
  std::vector<size_t> begins{0};  ///< by output element, where its taps begin; last: the end

  /// The taps of output element o; none: it is extrapolated.
  std::span<const Tap> taps_of(int64_t o) const {
    const size_t begin = begins[static_cast<size_t>(o)];
    return {taps.data() + begin, begins[static_cast<size_t>(o) + 1] - begin};
  }
};

struct Rule {
  std::string mode, coordinates, nearest;
  double cubic_a;
  bool antialias, exclude_outside;
};

/// The input coordinate of output element i; nothing when it is extrapolated.
std::optional<double> source(const Rule& rule, int64_t i, int64_t in, int64_t out, double scale,
                             double roi_begin, double roi_end) {
  const auto x = static_cast<double>(i), n = static_cast<double>(in);
  const double extent = scale * n;
  if (rule.coordinates == "align_corners") return extent == 1 ? 0 : x * (n - 1) / (extent - 1);
  if (rule.coordinates == "asymmetric") return x / scale;
  if (rule.coordinates == "tf_crop_and_resize") {
    const double span = (roi_end - roi_begin) * (n - 1);
    const double at = roi_begin * (n - 1) + (extent == 1 ? span / 2 : x * span / (extent - 1));
    if (!(at >= 0 && at <= n - 1)) return {};  // NaN neither
    return at;
  }
  if (rule.coordinates == "pytorch_half_pixel" && extent == 1) return -0.5;
  double offset = 0;
  if (rule.coordinates == "half_pixel_symmetric") {
    offset = n / 2 * (1 - static_cast<double>(out) / extent);
  }
  return offset + (x + 0.5) / scale - 0.5;
}

double nearest_index(const std::string& mode, double x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  if (mode == "round_prefer_ceil") return std::floor(x + 0.5);
  return std::ceil(x - 0.5);
}

/// The interpolation kernel at a distance from its centre.
double weight_at(const Rule& rule, double distance) {
  const double d = std::abs(distance), a = rule.cubic_a;
  if (rule.mode == "linear") return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

std::vector<Tap> taps_at(const Rule& rule, double x, int64_t in, double scale) {
  auto inside = [in](int64_t i) { return std::clamp<int64_t>(i, 0, in - 1); };
  constexpr double kFar = 0x1p50;  // distances beyond are all outside
  x = std::isnan(x) ? kFar : std::clamp(x, -kFar, kFar);
  if (rule.mode == "nearest") {
    return {{inside(static_cast<int64_t>(nearest_index(rule.nearest, x))), 1}};
  }
  // When shrinking with antialias, the kernel is stretched by the scale.
  const double shrink = rule.antialias ? std::min(scale, 1.0) : 1;
  const double radius =
      std::min((rule.mode == "linear" ? 1 : 2) / shrink, 4.0 * static_cast<double>(in) + 4);
  std::vector<Tap> taps;
  double sum = 0;
  const auto first = static_cast<int64_t>(std::floor(x - radius)) + 1;
  for (int64_t i = first; static_cast<double>(i) < x + radius; ++i) {
    if (rule.exclude_outside && (i < 0 || i >= in)) continue;
    const double w = weight_at(rule, (static_cast<double>(i) - x) * shrink);
    if (w == 0) continue;
    sum += w;
    if (!taps.empty() && taps.back().index == inside(i)) {
      taps.back().weight += w;
    } else {
      taps.push_back({inside(i), w});
    }
  }
  if (rule.antialias || rule.exclude_outside) {
    for (Tap& t : taps) t.weight /= sum == 0 ? 1 : sum;
  }
  return taps;
}

bool holds_reals(const Operand& operand) {
  return !operand.present() || operand.dtype == DType::f32 || operand.dtype == DType::f64;
}

std::vector<double> reals(const Operand& operand, const void* data) {
  std::vector<double> values;
  for (int64_t i = 0; i < operand.size(); ++i) {
    values.push_back(operand.dtype == DType::f64
                         ? static_cast<const double*>(data)[i]
                         : static_cast<double>(static_cast<const float*>(data)[i]));
  }
  return values;
}

/// The description of a resizing, without the region of interest.
struct Layout {
  struct Scaled {
    size_t axis;
    int64_t in, out;
    double factor;
  };
  Rule rule;
  std::vector<Scaled> axes;
};

/// The tables of the axes that change. `roi`: all begins, then all ends; empty: the whole input.
std::vector<Axis> tables(const Layout& layout, const std::vector<double>& roi) {
  std::vector<Axis> result;
  const size_t count = layout.axes.size();
  for (size_t i = 0; i < count; ++i) {
    const auto& [a, in, out, factor] = layout.axes[i];
    Axis axis{.axis = a, .in = in, .out = out};
    const double begin = roi.empty() ? 0 : roi[i], end = roi.empty() ? 1 : roi[count + i];
    if (in == out && factor == 1 && begin == 0 && end == 1) continue;
    const double shrink = layout.rule.antialias ? std::min(factor, 1.0) : 1;
    const double width = std::min(4 / shrink + 2, static_cast<double>(in) + 2);
    const double bytes =
        static_cast<double>(out) * (sizeof(size_t) + sizeof(Tap) * (std::isnan(width) ? 0 : width));
    require_bytes(bytes < 0x1p63 ? static_cast<size_t>(bytes) : SIZE_MAX, "tables of a resizing");
    for (int64_t o = 0; o < out; ++o) {
      poll();
      const auto x = source(layout.rule, o, in, out, factor, begin, end);
      if (x) std::ranges::copy(taps_at(layout.rule, *x, in, factor), std::back_inserter(axis.taps));
      axis.begins.push_back(axis.taps.size());
    }
    result.push_back(std::move(axis));
  }
  return result;
}

/// `first`: index of the input roi.
std::optional<Layout> read_resize(const NodeSpec& node, size_t first, const Dims& in,
                                  const Dims& out, std::string* why_not) {
  const Attrs& attrs = node.attrs;
  Layout layout{.rule = {attrs.string("mode"), attrs.string("coordinate_transformation_mode"),
                         attrs.string("nearest_mode"), attrs.real("cubic_coeff_a"),
                         attrs.integer("antialias") != 0, attrs.integer("exclude_outside") != 0},
                .axes = {}};
  const Operand &roi = node.in(first), &scales = node.in(first + 1);
  const bool sized = node.in(first + 2).present();
  const auto sizes = constant_ints(node.in(first + 2));
  const bool scaled = scales.present() && scales.size() > 0;
  if (!holds_reals(roi) || !holds_reals(scales)) {
    *why_not = "roi or scales are neither float32 nor float64";
    return {};
  }
  if (sized ? !sizes : !scaled || scales.constant == nullptr) {
    *why_not = "scales or sizes are computed";
    return {};
  }
  Ints axes = attrs.ints("axes");
  if (axes.empty()) {
    axes.resize(in.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  const size_t count = sized ? sizes->size() : static_cast<size_t>(scales.size());
  const bool crops = layout.rule.coordinates == "tf_crop_and_resize";
  const bool cut = !crops || (roi.present() && roi.size() == static_cast<int64_t>(2 * count));
  if (count != axes.size() || in.size() != out.size() || !cut) {
    *why_not = "the number of axes, scales, sizes or regions does not fit";
    return {};
  }
  const auto factors = sized ? std::vector<double>() : reals(scales, scales.constant->data());
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = axis_from_front(axes[i], static_cast<int64_t>(in.size()));
    if (!axis) {
      *why_not = "an axis is out of range";
      return {};
    }
    const auto a = static_cast<size_t>(*axis);
    if (in[a] == 0 && out[a] > 0) {
      *why_not = "an axis has no elements to grow from";
      return {};
    }
    double factor = 1;
    if (!sized) {
      factor = factors[i];
    } else if (in[a] > 0) {
      factor = static_cast<double>((*sizes)[i]) / static_cast<double>(in[a]);
    }
    layout.axes.push_back({a, in[a], out[a], factor});
  }
  const std::string policy = attrs.string("keep_aspect_ratio_policy");
  if (sized && policy != "stretch" && !layout.axes.empty()) {
    const auto [least, most] = std::ranges::minmax(layout.axes, {}, &Layout::Scaled::factor);
    const double factor = policy == "not_larger" ? least.factor : most.factor;
    for (auto& axis : layout.axes) axis.factor = factor;
  }
  return layout;
}

/// Resizes the last axis of one row.
template <typename T>
void resize_row(const Axis& axis, bool transposed, T extrapolated, const T* x, T* y) {
  if (transposed) {
    std::fill_n(y, axis.in, T{0});
    for (int64_t o = 0; o < axis.out; ++o) {
      for (const Tap& tap : axis.taps_of(o)) y[tap.index] += static_cast<T>(tap.weight) * x[o];
    }
    return;
  }
  for (int64_t o = 0; o < axis.out; ++o) {
    const auto taps = axis.taps_of(o);
    T sum = taps.empty() ? extrapolated : T{0};
    for (const Tap& tap : taps) sum += static_cast<T>(tap.weight) * x[tap.index];
    y[o] = sum;
  }
}

/// Resizes one axis of data with shape [outer, axis, inner]: y = Σ taps x, or the transpose.
template <typename T>
void resize_axis(const Axis& axis, bool transposed, int64_t outer, int64_t inner, T extrapolated,
                 const T* x, T* y) {
  const int64_t from = (transposed ? axis.out : axis.in) * inner;
  const int64_t to = (transposed ? axis.in : axis.out) * inner;
  const int64_t grain = grain_of(16384, from + to);
  parallel_for(outer, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const T* source = x + p * from;
      T* target = y + p * to;
      if (inner == 1) {
        resize_row(axis, transposed, extrapolated, source, target);
        continue;
      }
      std::fill_n(target, to, T{0});
      for (int64_t o = 0; o < axis.out; ++o) {
        if (inner > 4096) poll();
        const auto taps = axis.taps_of(o);
        if (taps.empty() && !transposed) std::fill_n(target + o * inner, inner, extrapolated);
        for (const Tap& tap : taps) {
          const auto weight = static_cast<T>(tap.weight);
          const T* a = source + (transposed ? o : tap.index) * inner;
          T* b = target + (transposed ? tap.index : o) * inner;
          for (int64_t j = 0; j < inner; ++j) b[j] += weight * a[j];
        }
      }
    }
  });
}

template <typename T>
struct Resize {
  std::vector<Axis> known;
  bool transposed;
  double extrapolated;
  Dims from;        ///< extents of input 0
  int64_t largest;  ///< size of the largest intermediate result
  /// If the region of interest is known only at run time: the description without it, and the index
  /// of its input. The tables are then computed in each run.
  Layout layout{};
  size_t roi_input = 0;
  Operand roi{};

  void operator()(const KernelArgs& args) const {
    if (roi_input == 0) return run(known, args);
    run(tables(layout, reals(roi, args.in[roi_input])), args);
  }

  void run(const std::vector<Axis>& axes, const KernelArgs& args) const {
    Dims dims = from;
    const T* x = args.input<T>(0);
    if (axes.empty()) std::copy_n(x, element_count(dims), args.output<T>(0));
    T* spare = static_cast<T*>(args.scratch);
    for (size_t i = 0; i < axes.size(); ++i) {
      const Axis& axis = axes[transposed ? axes.size() - 1 - i : i];
      const auto a = static_cast<int64_t>(axis.axis);
      T* y =
          i + 1 == axes.size() ? args.output<T>(0) : spare + static_cast<int64_t>(i % 2) * largest;
      resize_axis(axis, transposed, extent(dims, 0, a),
                  extent(dims, a + 1, static_cast<int64_t>(dims.size())),
                  static_cast<T>(extrapolated), x, y);
      dims[axis.axis] = transposed ? axis.in : axis.out;
      x = y;
    }
  }
};

std::unique_ptr<Kernel> make_resize(const NodeSpec& node, std::string* why_not) {
  const bool transposed = node.op == "steep.ResizeGrad";
  const Operand &from = node.in(0), &to = node.out(0);
  auto layout = transposed ? read_resize(node, 2, to.dims, from.dims, why_not)
                           : read_resize(node, 1, from.dims, to.dims, why_not);
  if (!layout) return nullptr;
  const size_t roi_input = transposed ? 2 : 1;
  const Operand& roi = node.in(roi_input);
  const bool crops = layout->rule.coordinates == "tf_crop_and_resize";
  const bool later = crops && roi.constant == nullptr;
  std::vector<Axis> axes;
  if (!later) axes = tables(*layout, crops ? reals(roi, roi.constant->data()) : Floats());
  Dims dims = from.dims;
  int64_t largest = 0;
  auto pass = [&](const auto& list) {
    for (size_t i = 0; i + 1 < list.size(); ++i) {
      const auto& axis = list[transposed ? list.size() - 1 - i : i];
      dims[axis.axis] = transposed ? axis.in : axis.out;
      largest = std::max(largest, element_count(dims));
    }
  };
  later ? pass(layout->axes) : pass(axes);
  const double extrapolated = node.attrs.real("extrapolation_value");
  auto make = [&]<typename T>(T*) {
    const auto scratch = static_cast<size_t>(2 * largest) * sizeof(T);
    Resize<T> resize{std::move(axes), transposed, extrapolated, from.dims, largest};
    if (later) {
      resize.layout = std::move(*layout);
      resize.roi_input = roi_input;
      resize.roi = {roi.dtype, roi.dims};
    }
    return kernel_from(std::move(resize), scratch);
  };
  if (to.dtype == DType::f32) return make(static_cast<float*>(nullptr));
  if (to.dtype == DType::f64) return make(static_cast<double*>(nullptr));
  return decline(why_not, "dtype is {}", name_of(to.dtype));
}

}  // namespace

void register_resize(std::vector<Candidate>& list) {
  list.push_back({"Resize", "by axis", make_resize});
  list.push_back({"steep.ResizeGrad", "by axis", make_resize});
}

}  // namespace steep::cpu
