// GridSample and steep.GridSampleGrad in up to three dimensions: along each axis a point has a few
// taps, and the products of tap weights are the weights of elements.

#include <algorithm>
#include <array>
#include <cmath>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

constexpr size_t kAxes = 3;  // missing axes have extent 1
constexpr size_t kMostTaps = 4;

enum class Mode : uint8_t { nearest, linear, cubic };
enum class Padding : uint8_t { zeros, border, reflection };

/// Indices of elements along one axis, their weights, and the derivatives of the weights for the
/// grid coordinate.
struct Taps {
  std::array<int64_t, kMostTaps> index;  ///< -1: outside, counts as 0
  std::array<double, kMostTaps> weight, slope;
  size_t count;
};

struct Sampler {
  Mode mode;
  Padding padding;
  bool align_corners;
  int64_t batch, channels, points;
  size_t rank;
  std::array<int64_t, kAxes> extents;  ///< of x

  int64_t plane() const { return extents[0] * extents[1] * extents[2]; }
  const auto* point(const auto* grid, int64_t i) const {
    return grid + i * static_cast<int64_t>(rank);
  }

  /// Reflects x into [low, high], with the derivative of the reflection.
  static double reflect(double x, double low, double high, double* slope) {
    const double span = high - low;
    if (span <= 0) {
      *slope = 0;
      return low;
    }
    double distance = x < low ? low - x : x - low;
    if (x < low) *slope = -*slope;
    const double turns = std::floor(distance / span);
    distance -= turns * span;
    if (std::fmod(turns, 2) == 0) return low + distance;
    *slope = -*slope;
    return high - distance;
  }

  int64_t place(double i, int64_t extent, double low, double high) const {
    if (padding == Padding::reflection && (i < low || i > high)) {
      double unused = 1;
      i = std::clamp(std::trunc(reflect(i, low, high, &unused)), 0.0,
                     static_cast<double>(extent - 1));
    }
    if (padding == Padding::border) i = std::clamp(i, 0.0, static_cast<double>(extent - 1));
    return i >= 0 && i < static_cast<double>(extent) ? static_cast<int64_t>(i) : -1;
  }

  Taps taps(double coordinate, int64_t extent) const {
    const auto n = static_cast<double>(extent);
    double slope = align_corners ? (n - 1) / 2 : n / 2;
    double x = align_corners ? (coordinate + 1) / 2 * (n - 1) : ((coordinate + 1) * n - 1) / 2;
    const double low = align_corners ? 0 : -0.5, high = align_corners ? n - 1 : n - 0.5;
    if (!std::isfinite(x)) x = -1e9;  // far outside, as PyTorch has it
    if (mode == Mode::nearest) {
      x = std::nearbyint(x);
      slope = 0;
    }
    if (x < low || x > high) {
      // Cubic mode clamps each of its taps instead, as PyTorch does.
      if (padding == Padding::border && mode != Mode::cubic) {
        x = std::clamp(x, 0.0, n - 1);
        slope = 0;
      } else if (padding == Padding::reflection) {
        x = reflect(x, low, high, &slope);
      }
    }
    Taps t{};
    // At and beyond the first and the last element there is one tap, with slope 0, as in PyTorch.
    if (padding != Padding::zeros && mode == Mode::linear && (x <= 0 || x >= n - 1)) {
      t.index[0] = x > 0 ? extent - 1 : 0;
      t.weight[0] = 1;
      t.count = 1;
      return t;
    }
    const double base = mode == Mode::nearest ? std::trunc(x) : std::floor(x), r = x - base;
    auto add = [&](double offset, double weight, double derivative) {
      t.index[t.count] = place(base + offset, extent, low, high);
      t.weight[t.count] = weight;
      t.slope[t.count++] = derivative * slope;
    };
    if (mode == Mode::nearest) {
      add(0, 1, 0);
    } else if (mode == Mode::linear) {
      add(0, 1 - r, -1);
      add(1, r, 1);
    } else {
      constexpr double kA = -0.75;  // Keys 1981
      auto near = [](double d) { return ((kA + 2) * d - (kA + 3)) * d * d + 1; };
      auto far = [](double d) { return ((kA * d - 5 * kA) * d + 8 * kA) * d - 4 * kA; };
      auto near_slope = [](double d) { return (3 * (kA + 2) * d - 2 * (kA + 3)) * d; };
      auto far_slope = [](double d) { return (3 * kA * d - 10 * kA) * d + 8 * kA; };
      add(-1, far(1 + r), far_slope(1 + r));
      add(0, near(r), near_slope(r));
      add(1, near(1 - r), -near_slope(1 - r));
      add(2, far(2 - r), -far_slope(2 - r));
    }
    return t;
  }

  /// Calls f(element of a plane, weight, {derivative of the weight per axis}) for the elements that
  /// a point reads. Coordinates in the grid start with the last axis.
  template <typename T, typename F>
  void each_element(const T* point, F&& f) const {
    const Taps one{.index = {0}, .weight = {1}, .slope = {0}, .count = 1};
    std::array<Taps, kAxes> axes{one, one, one};
    for (size_t a = kAxes - rank; a < kAxes; ++a) {
      axes[a] = taps(static_cast<double>(point[kAxes - 1 - a]), extents[a]);
    }
    const auto& [d, h, w] = axes;
    for (size_t i = 0; i < d.count; ++i) {
      for (size_t j = 0; j < h.count; ++j) {
        for (size_t k = 0; k < w.count; ++k) {
          if (d.index[i] < 0 || h.index[j] < 0 || w.index[k] < 0) continue;
          const double wd = d.weight[i], wh = h.weight[j], ww = w.weight[k];
          f((d.index[i] * extents[1] + h.index[j]) * extents[2] + w.index[k], wd * wh * ww,
            std::array{d.slope[i] * wh * ww, wd * h.slope[j] * ww, wd * wh * w.slope[k]});
        }
      }
    }
  }
};

template <typename T>
struct Sample {
  Sampler s;

  void operator()(const KernelArgs& args) const {
    const int64_t plane = s.plane();
    parallel_for(s.batch * s.points, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / s.points;
        const T* x = args.input<T>(0) + n * s.channels * plane;
        T* y = args.output<T>(0) + n * s.channels * s.points + i % s.points;
        for (int64_t c = 0; c < s.channels; ++c) y[c * s.points] = 0;
        s.each_element(s.point(args.input<T>(1), i), [&](int64_t at, double w, const auto&) {
          for (int64_t c = 0; c < s.channels; ++c) {
            y[c * s.points] += static_cast<T>(w) * x[c * plane + at];
          }
        });
      }
    });
  }
};

template <typename T>
struct SampleGrad {
  Sampler s;
  bool dx, dgrid;

  void operator()(const KernelArgs& args) const {
    const T* dy = args.input<T>(0);
    const T* x = args.input<T>(1);
    const T* grid = args.input<T>(2);
    const int64_t plane = s.plane();
    // Several points may add to one element, so threads divide planes, not points.
    if (dx) {
      parallel_for(s.batch * s.channels, 1, [&](int64_t begin, int64_t end) {
        std::fill(args.output<T>(0) + begin * plane, args.output<T>(0) + end * plane, T{0});
        for (int64_t n = begin / s.channels; n * s.channels < end; ++n) {
          const int64_t first = std::max(begin, n * s.channels);
          const int64_t last = std::min(end, (n + 1) * s.channels);
          for (int64_t p = 0; p < s.points; ++p) {
            s.each_element(s.point(grid, n * s.points + p), [&](int64_t at, double w, const auto&) {
              for (int64_t c = first; c < last; ++c) {
                args.output<T>(0)[c * plane + at] += static_cast<T>(w) * dy[c * s.points + p];
              }
            });
          }
        }
      });
    }
    if (!dgrid) return;
    parallel_for(s.batch * s.points, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = i / s.points;
        std::array<double, kAxes> sum{};
        s.each_element(s.point(grid, i), [&](int64_t at, double, const auto& slopes) {
          double along = 0;
          for (int64_t c = n * s.channels; c < (n + 1) * s.channels; ++c) {
            along += static_cast<double>(dy[c * s.points + i % s.points]) *
                     static_cast<double>(x[c * plane + at]);
          }
          for (size_t a = 0; a < kAxes; ++a) sum[a] += along * slopes[a];
        });
        T* to = args.output<T>(1) + i * static_cast<int64_t>(s.rank);
        for (size_t a = 0; a < s.rank; ++a) to[a] = static_cast<T>(sum[kAxes - 1 - a]);
      }
    });
  }
};

std::unique_ptr<Kernel> make_grid_sample(const NodeSpec& node, std::string* why_not) {
  const bool backward = node.op == "steep.GridSampleGrad";
  const Operand &x = node.in(backward ? 1 : 0), &grid = node.in(backward ? 2 : 1);
  const int64_t rank = x.rank() - 2;
  if (rank < 1 || rank > static_cast<int64_t>(kAxes) || grid.rank() != rank + 2 ||
      grid.dims.back() != rank || grid.dims[0] != x.dims[0]) {
    return decline(why_not, "x and grid do not fit, or have more than three spatial axes");
  }
  if (grid.dtype != x.dtype) return decline(why_not, "x and grid differ in dtype");
  const std::string mode = node.attrs.string("mode");
  const std::string padding = node.attrs.string("padding_mode");
  Sampler s{.mode = mode == "nearest" ? Mode::nearest
                    : mode == "cubic" ? Mode::cubic
                                      : Mode::linear,
            .padding = padding == "border"       ? Padding::border
                       : padding == "reflection" ? Padding::reflection
                                                 : Padding::zeros,
            .align_corners = node.attrs.integer("align_corners") != 0,
            .batch = x.dims[0],
            .channels = x.dims[1],
            .points = extent(grid.dims, 1, rank + 1),
            .rank = static_cast<size_t>(rank),
            .extents = {1, 1, 1}};
  std::copy(x.dims.begin() + 2, x.dims.end(), s.extents.end() - rank);
  if (s.plane() == 0 && s.points > 0) return decline(why_not, "x is empty");
  const bool first = node.out(0).present(), second = node.out(1).present();
  auto make = [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    if (backward) return kernel_from(SampleGrad<T>{s, first, second});
    return kernel_from(Sample<T>{s});
  };
  if (x.dtype == DType::f32) return make(static_cast<float*>(nullptr));
  if (x.dtype == DType::f64) return make(static_cast<double*>(nullptr));
  return decline(why_not, "dtype is {}", name_of(x.dtype));
}

}  // namespace

void register_grid_sample(std::vector<Candidate>& list) {
  list.push_back({"GridSample", "loops", make_grid_sample});
  list.push_back({"steep.GridSampleGrad", "loops", make_grid_sample});
}

}  // namespace steep::cpu
