// Resize and steep.ResizeGrad. Along each axis an output element is a weighted sum of a few input
// elements; which ones, and the weights, are settled when the kernel is built. The gradient is the
// transpose of these sums, in the opposite order of axes.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

struct Tap {
  int64_t index;
  double weight;
};

/// One axis of the resizing.
struct Axis {
  size_t axis;
  int64_t in, out;
  std::vector<std::vector<Tap>> taps;  ///< for each output element; none: it is extrapolated
};

struct Rule {
  std::string mode, coordinates, nearest;
  double cubic_a;
  bool antialias, exclude_outside;
};

/// The input coordinate of output element i; nothing where it is extrapolated.
std::optional<double> source(const Rule& rule, int64_t i, int64_t in, int64_t out, double scale,
                             double roi_begin, double roi_end) {
  const auto x = static_cast<double>(i), n = static_cast<double>(in);
  const double wanted = scale * n;
  if (rule.coordinates == "align_corners") return wanted == 1 ? 0 : x * (n - 1) / (wanted - 1);
  if (rule.coordinates == "asymmetric") return x / scale;
  if (rule.coordinates == "tf_crop_and_resize") {
    const double span = (roi_end - roi_begin) * (n - 1);
    const double at = roi_begin * (n - 1) + (wanted == 1 ? span / 2 : x * span / (wanted - 1));
    if (at < 0 || at > n - 1) return {};
    return at;
  }
  if (rule.coordinates == "pytorch_half_pixel" && wanted == 1) return -0.5;
  double offset = 0;
  if (rule.coordinates == "half_pixel_symmetric") {
    offset = n / 2 * (1 - static_cast<double>(out) / wanted);
  }
  return offset + (x + 0.5) / scale - 0.5;
}

double nearest_index(const std::string& mode, double x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  if (mode == "round_prefer_ceil") return std::floor(x + 0.5);
  return std::ceil(x - 0.5);
}

/// The interpolating function at a distance from its centre.
double weight_at(const Rule& rule, double distance) {
  const double d = std::abs(distance), a = rule.cubic_a;
  if (rule.mode == "linear") return std::max(0.0, 1 - d);
  if (d <= 1) return ((a + 2) * d - (a + 3)) * d * d + 1;
  return d < 2 ? ((a * d - 5 * a) * d + 8 * a) * d - 4 * a : 0;
}

std::vector<Tap> taps_at(const Rule& rule, double x, int64_t in, double scale) {
  auto inside = [in](int64_t i) { return std::clamp<int64_t>(i, 0, in - 1); };
  if (rule.mode == "nearest") {
    return {{inside(static_cast<int64_t>(nearest_index(rule.nearest, x))), 1}};
  }
  // When shrinking, an antialiased function grows as wide as the elements of the output.
  const double shrink = rule.antialias ? std::min(scale, 1.0) : 1;
  const double radius = (rule.mode == "linear" ? 1 : 2) / shrink;
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

/// Floats of a constant operand; empty when it is absent or empty.
std::optional<std::vector<double>> constant_reals(const Operand& operand) {
  if (!operand.present() || operand.size() == 0) return std::vector<double>();
  if (operand.constant == nullptr) return {};
  std::vector<double> values;
  for (int64_t i = 0; i < operand.size(); ++i) {
    values.push_back(operand.dtype == DType::f64
                         ? operand.constant->data<double>()[i]
                         : static_cast<double>(operand.constant->data<float>()[i]));
  }
  return values;
}

/// The axes that change. `first` is the place of roi among the inputs.
std::optional<std::vector<Axis>> read_resize(const NodeSpec& node, size_t first, const Dims& in,
                                             const Dims& out, std::string* why_not) {
  const Attrs& attrs = node.attrs;
  const Rule rule{attrs.string("mode", "nearest"),
                  attrs.string("coordinate_transformation_mode", "half_pixel"),
                  attrs.string("nearest_mode", "round_prefer_floor"),
                  attrs.real("cubic_coeff_a", -0.75),
                  attrs.integer("antialias", 0) != 0,
                  attrs.integer("exclude_outside", 0) != 0};
  const auto roi = constant_reals(node.in(first)), scales = constant_reals(node.in(first + 1));
  const bool sized = node.in(first + 2).present();
  const auto sizes = constant_ints(node.in(first + 2));
  if (!scales || (!sized && scales->empty()) || (sized && !sizes)) {
    *why_not = "scales or sizes are computed";
    return {};
  }
  const bool crops = rule.coordinates == "tf_crop_and_resize";
  if (crops && (!roi || roi->empty())) {
    *why_not = "the region of interest is absent or computed";
    return {};
  }
  Ints axes = attrs.ints("axes");
  if (axes.empty()) {
    axes.resize(in.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  const size_t given = sized ? sizes->size() : scales->size();
  if (given != axes.size() || in.size() != out.size() || (crops && roi->size() != 2 * given)) {
    *why_not = "the number of axes, scales, sizes or regions does not fit";
    return {};
  }
  std::vector<double> factors;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = axis_from_front(axes[i], static_cast<int64_t>(in.size()));
    if (!axis) {
      *why_not = "an axis is out of range";
      return {};
    }
    axes[i] = *axis;
    const auto extent = static_cast<double>(in[static_cast<size_t>(*axis)]);
    factors.push_back(sized ? static_cast<double>((*sizes)[i]) / extent : (*scales)[i]);
  }
  const std::string policy = attrs.string("keep_aspect_ratio_policy", "stretch");
  if (sized && policy != "stretch" && !factors.empty()) {
    const auto [least, most] = std::minmax_element(factors.begin(), factors.end());
    std::fill(factors.begin(), factors.end(),
              policy == "not_larger" ? double{*least} : double{*most});
  }
  std::vector<Axis> result;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto a = static_cast<size_t>(axes[i]);
    Axis axis{.axis = a, .in = in[a], .out = out[a], .taps = {}};
    const double begin = crops ? (*roi)[i] : 0, end = crops ? (*roi)[given + i] : 1;
    if (axis.in == axis.out && factors[i] == 1 && begin == 0 && end == 1) continue;
    for (int64_t o = 0; o < axis.out; ++o) {
      const auto x = source(rule, o, axis.in, axis.out, factors[i], begin, end);
      axis.taps.push_back(x ? taps_at(rule, *x, axis.in, factors[i]) : std::vector<Tap>());
    }
    result.push_back(std::move(axis));
  }
  return result;
}

/// Along one axis, of data seen as [outer, axis, inner]: y = Σ taps x, or its transpose.
template <typename T>
void resize_axis(const Axis& axis, bool transposed, int64_t outer, int64_t inner, T extrapolated,
                 const T* x, T* y) {
  const int64_t from = (transposed ? axis.out : axis.in) * inner;
  const int64_t to = (transposed ? axis.in : axis.out) * inner;
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, from + to));
  parallel_for(outer, grain, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const T* source = x + p * from;
      T* target = y + p * to;
      std::fill_n(target, to, T{0});
      for (int64_t o = 0; o < axis.out; ++o) {
        const auto& taps = axis.taps[static_cast<size_t>(o)];
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
  std::vector<Axis> axes;
  bool transposed;
  double extrapolated;
  Dims from;        ///< extents of input 0
  int64_t largest;  ///< elements of the largest result between two axes

  void operator()(const KernelArgs& args) const {
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
  auto axes = transposed ? read_resize(node, 2, to.dims, from.dims, why_not)
                         : read_resize(node, 1, from.dims, to.dims, why_not);
  if (!axes) return nullptr;
  Dims dims = from.dims;
  int64_t largest = 0;
  for (size_t i = 0; i + 1 < axes->size(); ++i) {
    const Axis& axis = (*axes)[transposed ? axes->size() - 1 - i : i];
    dims[axis.axis] = transposed ? axis.in : axis.out;
    largest = std::max(largest, element_count(dims));
  }
  const double extrapolated = node.attrs.real("extrapolation_value", 0);
  auto make = [&]<typename T>(T*) {
    const auto scratch = static_cast<size_t>(2 * largest) * sizeof(T);
    return kernel_from(Resize<T>{std::move(*axes), transposed, extrapolated, from.dims, largest},
                       scratch);
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
