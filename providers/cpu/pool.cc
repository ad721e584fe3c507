// MaxPool, AveragePool, steep.SumPool and their gradients, for what oneDNN does not support: loops
// over windows, planes in parallel.

#include "providers/cpu/pool.h"

#include <cmath>
#include <limits>

#include "providers/cpu/parallel.h"

namespace steep::cpu {

std::optional<Pool> read_pool(const NodeSpec& node, std::string* why_not) {
  Dims in = node.in(0).dims, out = node.out(node.out(0).present() ? 0 : 1).dims;
  if (node.op.ends_with("Grad")) {  // of MaxPool: (dy, x) → dx; of the others: (dy, shape) → dx
    out = in;
    in = node.out(0).dims;
  }
  const auto axes = read_window(node.attrs, in, out, node.attrs.ints("kernel_shape"), why_not);
  if (!axes) return {};
  if (axes->size() > 3) {
    *why_not = "more than three spatial axes";
    return {};
  }
  Pool pool{.rank = axes->size(),
            .axes = as_volume(*axes),
            .taps = {},
            .inside_pads = {},
            .planes = in[0] * in[1]};
  for (size_t a = 0; a < 3; ++a) {
    const WindowAxis& axis = pool.axes[a];
    require_bytes(static_cast<size_t>(axis.out) * 3 * sizeof(int64_t), "tables of a pooling");
    for (int64_t o = 0; o < axis.out; ++o) {
      pool.taps[a].push_back(axis.taps_inside(o));
      pool.inside_pads[a].push_back(axis.taps_before_end(o));
      poll();
    }
  }
  return pool;
}

namespace {

using Window = std::array<int64_t, 3>;  ///< index of a window on each axis

/// Calls f(o, window) for each window of a plane: o counts outputs.
template <typename F>
void each_window(const Pool& pool, F&& f) {
  const bool long_windows = pool.taps_each() > 4096;
  int64_t o = 0;
  for (int64_t d = 0; d < pool.axes[0].out; ++d) {
    for (int64_t h = 0; h < pool.axes[1].out; ++h) {
      for (int64_t w = 0; w < pool.axes[2].out; ++w, ++o) {
        f(o, Window{d, h, w});
        if (long_windows) poll();
      }
    }
  }
}

/// Calls f(i) for each element of the plane that the window touches, in row-major order.
template <typename F>
void each_tap(const Pool& pool, const Window& window, F&& f) {
  const auto [d, h, w] = window;
  const auto [d0, d1] = pool.taps[0][static_cast<size_t>(d)];
  const auto [h0, h1] = pool.taps[1][static_cast<size_t>(h)];
  const auto [w0, w1] = pool.taps[2][static_cast<size_t>(w)];
  const auto& axes = pool.axes;
  const int64_t step = axes[2].dilation;
  for (int64_t i = d0; i < d1; ++i) {
    for (int64_t j = h0; j < h1; ++j) {
      const int64_t row = (axes[0].at(d, i) * axes[1].in + axes[1].at(h, j)) * axes[2].in;
      int64_t at = row + axes[2].at(w, w0);
      for (int64_t k = w0; k < w1; ++k, at += step) f(at);
    }
  }
}

/// The divisor of a mean over the window.
double divisor(const Pool& pool, const Window& window, bool count_pads) {
  double product = 1;
  for (size_t a = 0; a < 3; ++a) {
    const auto o = static_cast<size_t>(window[a]);
    product *= static_cast<double>(count_pads ? pool.inside_pads[a][o]
                                              : pool.taps[a][o].second - pool.taps[a][o].first);
  }
  return std::max(product, 1.0);
}

/// The first maximal element of a window; NaN counts as the maximum. -1: an empty window.
template <typename T>
int64_t largest(const Pool& pool, const Window& window, const T* x) {
  int64_t best = -1;
  T most{};
  each_tap(pool, window, [&](int64_t i) {
    const T v = x[i];
    if (best < 0 || v > most || v != v) {
      best = i;
      most = v;
    }
  });
  return best;
}

template <typename T>
struct MaxPool {
  Pool pool;
  bool y, indices, by_columns;

  void operator()(const KernelArgs& args) const {
    constexpr T kLeast = std::numeric_limits<T>::has_infinity ? -std::numeric_limits<T>::infinity()
                                                              : std::numeric_limits<T>::lowest();
    parallel_for(pool.planes, pool.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T* x = args.input<T>(0) + p * pool.in();
        each_window(pool, [&](int64_t o, const Window& window) {
          const int64_t best = largest(pool, window, x);
          const int64_t at = p * pool.out() + o;
          if (y) args.output<T>(0)[at] = best < 0 ? kLeast : x[best];
          if (indices)
            args.output<int64_t>(1)[at] = p * pool.in() + place(std::max<int64_t>(best, 0));
        });
      }
    });
  }

  /// The index of an element in its plane, in the requested storage order.
  int64_t place(int64_t i) const {
    if (!by_columns) return i;
    const auto& [depth, height, width] = pool.axes;
    const int64_t w = i % width.in, h = i / width.in % height.in, d = i / (width.in * height.in);
    return d + depth.in * (h + height.in * w);
  }
};

template <typename T>
struct MaxPoolGrad {
  Pool pool;

  void operator()(const KernelArgs& args) const {
    parallel_for(pool.planes, pool.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T* dy = args.input<T>(0) + p * pool.out();
        const T* x = args.input<T>(1) + p * pool.in();
        T* dx = args.output<T>(0) + p * pool.in();
        std::fill_n(dx, pool.in(), T{0});
        each_window(pool, [&](int64_t o, const Window& window) {
          const int64_t best = largest(pool, window, x);
          if (best >= 0) dx[best] += dy[o];
        });
      }
    });
  }
};

/// Sums or means over windows.
template <typename T>
struct SumPool {
  Pool pool;
  bool divide, count_pads;

  void operator()(const KernelArgs& args) const {
    parallel_for(pool.planes, pool.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T* x = args.input<T>(0) + p * pool.in();
        T* y = args.output<T>(0) + p * pool.out();
        each_window(pool, [&](int64_t o, const Window& window) {
          T sum = 0;
          each_tap(pool, window, [&](int64_t i) { sum += x[i]; });
          y[o] = divide ? sum / static_cast<T>(divisor(pool, window, count_pads)) : sum;
        });
      }
    });
  }
};

template <typename T>
struct SumPoolGrad {
  Pool pool;
  bool divide, count_pads;

  void operator()(const KernelArgs& args) const {
    parallel_for(pool.planes, pool.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t p = begin; p < end; ++p) {
        const T* dy = args.input<T>(0) + p * pool.out();
        T* dx = args.output<T>(0) + p * pool.in();
        std::fill_n(dx, pool.in(), T{0});
        each_window(pool, [&](int64_t o, const Window& window) {
          const T d = divide ? dy[o] / static_cast<T>(divisor(pool, window, count_pads)) : dy[o];
          each_tap(pool, window, [&](int64_t i) { dx[i] += d; });
        });
      }
    });
  }
};

template <template <typename> class F, typename... More>
std::unique_ptr<Kernel> for_floats(DType dtype, std::string* why_not, Pool pool, More... more) {
  if (dtype == DType::f32) return kernel_from(F<float>{std::move(pool), more...});
  if (dtype == DType::f64) return kernel_from(F<double>{std::move(pool), more...});
  return decline(why_not, "dtype is {}", name_of(dtype));
}

}  // namespace

std::unique_ptr<Kernel> make_max_pool(const NodeSpec& node, std::string* why_not) {
  auto pool = read_pool(node, why_not);
  if (!pool) return nullptr;
  const DType dtype = node.in(0).dtype;
  if (dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::boolean) {
    return decline(why_not, "dtype is {}", name_of(dtype));
  }
  return with_storage_type(dtype, [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    return kernel_from(MaxPool<T>{std::move(*pool), node.out(0).present(), node.out(1).present(),
                                  node.attrs.integer("storage_order") != 0});
  });
}

std::unique_ptr<Kernel> make_max_pool_grad(const NodeSpec& node, std::string* why_not) {
  auto pool = read_pool(node, why_not);
  if (!pool) return nullptr;
  return for_floats<MaxPoolGrad>(node.in(1).dtype, why_not, std::move(*pool));
}

std::unique_ptr<Kernel> make_sum_pool(const NodeSpec& node, std::string* why_not) {
  const bool backward = node.op.ends_with("Grad");
  auto pool = read_pool(node, why_not);
  if (!pool) return nullptr;
  const bool divide = node.op.find("Sum") == std::string_view::npos;
  const bool count_pads = node.attrs.integer("count_include_pad") != 0;
  const DType dtype = node.in(0).dtype;
  if (backward) {
    return for_floats<SumPoolGrad>(dtype, why_not, std::move(*pool), divide, count_pads);
  }
  return for_floats<SumPool>(dtype, why_not, std::move(*pool), divide, count_pads);
}

void register_pool(std::vector<Candidate>& list) {
  for (const char* op : {"MaxPool", "steep.MaxPoolGrad", "AveragePool", "steep.AveragePoolGrad"}) {
    list.push_back({op, "onednn", make_onednn_pool});
  }
  list.push_back({"MaxPool", "loops", make_max_pool});
  list.push_back({"steep.MaxPoolGrad", "loops", make_max_pool_grad});
  for (const char* op :
       {"AveragePool", "steep.AveragePoolGrad", "steep.SumPool", "steep.SumPoolGrad"}) {
    list.push_back({op, "loops", make_sum_pool});
  }
}

}  // namespace steep::cpu
