// RoiAlign, MaxRoiPool and their gradients.

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

namespace steep::cpu {
namespace {

struct Geometry {
  int64_t batch, channels, height, width;  ///< of x
  int64_t rois, out_h, out_w;
  double scale;

  int64_t plane() const { return height * width; }
  int64_t out_plane() const { return out_h * out_w; }
};

/// An element of a plane and its weight.
struct Corner {
  int64_t at;
  double weight;
};

struct AlignRule {
  bool max, half_pixel;
  int64_t sampling;

  /// Calls f(output element, corners, samples in its bin) for each sample of one region.
  template <typename T, typename F>
  void each_sample(const Geometry& g, const T* roi, F&& f) const {
    const double shift = half_pixel ? 0.5 : 0;
    auto side = [&](int i) { return static_cast<double>(roi[i]) * g.scale - shift; };
    const double left = side(0), top = side(1);
    // Without the half pixel offset a region has at least the size of one element.
    const double least = half_pixel ? -std::numeric_limits<double>::infinity() : 1;
    const double bin_h = std::max(side(3) - top, least) / static_cast<double>(g.out_h);
    const double bin_w = std::max(side(2) - left, least) / static_cast<double>(g.out_w);
    // A region that is not finite, or larger than any image, has no samples.
    auto samples = [&](double bin) -> int64_t {
      if (sampling > 0) return sampling;
      return bin > 0 && bin < 0x1p31 ? static_cast<int64_t>(std::ceil(bin)) : 0;
    };
    const int64_t rows = samples(bin_h), columns = samples(bin_w);
    for (int64_t o = 0; o < g.out_plane(); ++o) {
      const int64_t bin_row = o / g.out_w, bin_column = o % g.out_w;
      const auto [first_row, end_row] = near(top, bin_h, bin_row, rows, g.height);
      const auto [first_column, end_column] = near(left, bin_w, bin_column, columns, g.width);
      for (int64_t row = first_row; row < end_row; ++row) {
        for (int64_t column = first_column; column < end_column; ++column) {
          const double y = top + place(bin_row, row, rows) * bin_h;
          const double x = left + place(bin_column, column, columns) * bin_w;
          f(o, corners(g, y, x), rows * columns);
        }
      }
    }
  }

 private:
  /// The position of sample i of `count`, in bins.
  static double place(int64_t bin, int64_t i, int64_t count) {
    return static_cast<double>(bin) + (static_cast<double>(i) + 0.5) / static_cast<double>(count);
  }

  /// The range of a bin's samples that may be inside the image. It has up to two more samples at
  /// either end, which represent all samples outside. So a large region costs no more than the
  /// image.
  static std::pair<int64_t, int64_t> near(double from, double bin, int64_t which, int64_t count,
                                          int64_t extent) {
    if (!(bin > 0 && std::isfinite(bin))) return {0, count};
    auto sample_at = [&](double at) {
      const double i =
          ((at - from) / bin - static_cast<double>(which)) * static_cast<double>(count);
      return i > 0 ? static_cast<int64_t>(std::min(i, static_cast<double>(count))) : 0;
    };
    return {std::max<int64_t>(sample_at(-1) - 2, 0),
            std::min(sample_at(static_cast<double>(extent)) + 2, count)};
  }

  static std::array<Corner, 4> corners(const Geometry& g, double y, double x) {
    const auto h = static_cast<double>(g.height), w = static_cast<double>(g.width);
    if (!(y >= -1 && y <= h && x >= -1 && x <= w)) return {};
    y = std::min(std::max(y, 0.0), h - 1);
    x = std::min(std::max(x, 0.0), w - 1);
    const auto y0 = static_cast<int64_t>(y), x0 = static_cast<int64_t>(x);
    const int64_t y1 = std::min(y0 + 1, g.height - 1), x1 = std::min(x0 + 1, g.width - 1);
    const double v = y - static_cast<double>(y0), u = x - static_cast<double>(x0);
    return {{{y0 * g.width + x0, (1 - v) * (1 - u)},
             {y0 * g.width + x1, (1 - v) * u},
             {y1 * g.width + x0, v * (1 - u)},
             {y1 * g.width + x1, v * u}}};
  }
};

/// The image index of each region, checked before anything is written.
template <typename T>
std::vector<int64_t> images(const NodeId& id, const Geometry& g, const T* indices, int64_t step) {
  std::vector<int64_t> result;
  for (int64_t r = 0; r < g.rois; ++r) {
    const T image = indices[r * step];
    if (!(image >= 0 && image < static_cast<T>(g.batch))) {  // also refuses NaN
      id.data_error("The image number of a region is out of range.",
                    fmt::format("0 to {}", g.batch - 1), fmt::format("{}", image));
    }
    result.push_back(static_cast<int64_t>(image));
  }
  return result;
}

/// ONNX takes the maximum of the weighted corners, not of the interpolated samples.
template <typename T>
struct RoiAlign {
  NodeId id;
  Geometry g;
  AlignRule rule;

  void operator()(const KernelArgs& args) const {
    const auto image = images(id, g, args.input<int64_t>(2), 1);
    parallel_for(g.rois, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* x = args.input<T>(0) + image[static_cast<size_t>(r)] * g.channels * g.plane();
        T* y = args.output<T>(0) + r * g.channels * g.out_plane();
        std::fill_n(y, g.channels * g.out_plane(), T{0});
        int64_t last = -1;
        rule.each_sample(g, args.input<T>(1) + r * 4,
                         [&](int64_t o, const std::array<Corner, 4>& corners, int64_t count) {
                           const bool first = o != std::exchange(last, o);
                           for (int64_t c = 0; c < g.channels; ++c) {
                             add(x + c * g.plane(), corners, count, first,
                                 &y[c * g.out_plane() + o]);
                           }
                         });
      }
    });
  }

  void add(const T* x, const std::array<Corner, 4>& corners, int64_t count, bool first,
           T* y) const {
    for (size_t k = 0; k < corners.size(); ++k) {
      const T v = static_cast<T>(corners[k].weight) * x[corners[k].at];
      if (!rule.max) {
        *y += v / static_cast<T>(count);
      } else if ((first && k == 0) || v > *y) {
        *y = v;
      }
    }
  }
};

template <typename T>
struct RoiAlignGrad {
  NodeId id;
  Geometry g;
  AlignRule rule;

  void operator()(const KernelArgs& args) const {
    const auto image = images(id, g, args.input<int64_t>(3), 1);
    // Regions overlap, so threads divide channels.
    parallel_for(g.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; n < g.batch; ++n) {
        T* dx = args.output<T>(0) + n * g.channels * g.plane();
        std::fill(dx + begin * g.plane(), dx + end * g.plane(), T{0});
      }
      for (int64_t r = 0; r < g.rois; ++r) {
        for (int64_t c = begin; c < end; ++c) {
          const int64_t at = (image[static_cast<size_t>(r)] * g.channels + c) * g.plane();
          region(args.input<T>(2) + r * 4, args.input<T>(0) + (r * g.channels + c) * g.out_plane(),
                 args.input<T>(1) + at, args.output<T>(0) + at);
        }
      }
    });
  }

  void region(const T* roi, const T* dy, const T* x, T* dx) const {
    int64_t last = -1;
    Corner best{};
    T most{};
    auto give = [&] {
      if (rule.max && last >= 0) dx[best.at] += dy[last] * static_cast<T>(best.weight);
    };
    rule.each_sample(g, roi, [&](int64_t o, const std::array<Corner, 4>& corners, int64_t count) {
      if (o != last) give();
      const bool first = o != std::exchange(last, o);
      for (size_t k = 0; k < corners.size(); ++k) {
        const Corner& corner = corners[k];
        const T v = static_cast<T>(corner.weight) * x[corner.at];
        if (!rule.max) {
          dx[corner.at] += dy[o] * static_cast<T>(corner.weight) / static_cast<T>(count);
        } else if ((first && k == 0) || v > most) {
          best = corner;
          most = v;
        }
      }
    });
    give();
  }
};

/// Calls f(output element, index of the first maximal element of its bin or -1) for one region [5].
template <typename T, typename F>
void each_bin(const Geometry& g, const T* roi, const T* x, F&& f) {
  // In double, because sides may be NaN or infinite.
  auto side = [&](int i) { return std::round(static_cast<double>(roi[i]) * g.scale); };
  const double left = side(1), top = side(2);
  const double bin_h = std::max(side(4) - top + 1, 1.0) / static_cast<double>(g.out_h);
  const double bin_w = std::max(side(3) - left + 1, 1.0) / static_cast<double>(g.out_w);
  auto edge = [](double from, double steps, double bin, int64_t extent, bool up) -> int64_t {
    const double at = (up ? std::ceil(steps * bin) : std::floor(steps * bin)) + from;
    return at > 0 ? static_cast<int64_t>(std::min(at, static_cast<double>(extent))) : 0;
  };
  for (int64_t o = 0; o < g.out_plane(); ++o) {
    const int64_t row = o / g.out_w, column = o % g.out_w;
    const auto h = static_cast<double>(row), w = static_cast<double>(column);
    const int64_t h1 = edge(top, h + 1, bin_h, g.height, true);
    const int64_t w0 = edge(left, w, bin_w, g.width, false);
    const int64_t w1 = edge(left, w + 1, bin_w, g.width, true);
    int64_t best = -1;
    for (int64_t i = edge(top, h, bin_h, g.height, false); i < h1; ++i) {
      for (int64_t j = w0; j < w1; ++j) {
        const int64_t at = i * g.width + j;
        if (best < 0 || x[at] > x[best]) best = at;
      }
    }
    f(o, best);
  }
}

template <typename T>
struct MaxRoiPool {
  NodeId id;
  Geometry g;
  bool backward;

  void operator()(const KernelArgs& args) const {
    const T* x = args.input<T>(backward ? 1 : 0);
    const T* rois = args.input<T>(backward ? 2 : 1);
    const auto image = images(id, g, rois, 5);
    parallel_for(g.channels, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = 0; backward && n < g.batch; ++n) {
        T* dx = args.output<T>(0) + n * g.channels * g.plane();
        std::fill(dx + begin * g.plane(), dx + end * g.plane(), T{0});
      }
      for (int64_t r = 0; r < g.rois; ++r) {
        for (int64_t c = begin; c < end; ++c) {
          const int64_t at = (image[static_cast<size_t>(r)] * g.channels + c) * g.plane();
          const int64_t out = (r * g.channels + c) * g.out_plane();
          each_bin(g, rois + r * 5, x + at, [&](int64_t o, int64_t best) {
            if (!backward) {
              args.output<T>(0)[out + o] = best < 0 ? T{0} : x[at + best];
            } else if (best >= 0) {
              args.output<T>(0)[at + best] += args.input<T>(0)[out + o];
            }
          });
        }
      }
    });
  }
};

template <typename T>
std::unique_ptr<Kernel> roi_kernel(const NodeSpec& node, const Geometry& g, bool backward,
                                   bool align) {
  if (!align) return kernel_from(MaxRoiPool<T>{NodeId(node), g, backward});
  const AlignRule rule{
      .max = node.attrs.string("mode") == "max",
      .half_pixel = node.attrs.string("coordinate_transformation_mode") == "half_pixel",
      .sampling = node.attrs.integer("sampling_ratio")};
  if (backward) return kernel_from(RoiAlignGrad<T>{NodeId(node), g, rule});
  return kernel_from(RoiAlign<T>{NodeId(node), g, rule});
}

std::unique_ptr<Kernel> make_roi(const NodeSpec& node, std::string* why_not) {
  const bool backward = node.op.starts_with("steep.");
  const bool align = node.op.find("Align") != std::string_view::npos;
  const Operand &x = node.in(backward ? 1 : 0), &rois = node.in(backward ? 2 : 1);
  const Operand& y = backward ? node.in(0) : node.out(0);
  if (x.rank() != 4 || y.rank() != 4 || rois.rank() != 2 || rois.dims[1] != (align ? 4 : 5) ||
      rois.dims[0] != y.dims[0]) {
    return decline(why_not, "the shapes of images and regions do not fit");
  }
  const size_t indices = backward ? 3 : 2;
  if (align && (node.in(indices).dtype != DType::i64 || node.in(indices).size() != rois.dims[0])) {
    return decline(why_not, "there is not one int64 image for each region");
  }
  if (rois.dtype != x.dtype) return decline(why_not, "images and regions differ in dtype");
  if (extent(x.dims, 2, 4) == 0 && y.size() > 0) return decline(why_not, "empty images");
  const Geometry g{x.dims[0], x.dims[1], x.dims[2], x.dims[3],
                   y.dims[0], y.dims[2], y.dims[3], node.attrs.real("spatial_scale")};
  if (x.dtype == DType::f32) return roi_kernel<float>(node, g, backward, align);
  if (x.dtype == DType::f64) return roi_kernel<double>(node, g, backward, align);
  return decline(why_not, "dtype is {}", name_of(x.dtype));
}

}  // namespace

void register_roi(std::vector<Candidate>& list) {
  for (const char* op : {"RoiAlign", "MaxRoiPool", "steep.RoiAlignGrad", "steep.MaxRoiPoolGrad"}) {
    list.push_back({op, "loops", make_roi});
  }
}

}  // namespace steep::cpu
