// LayerNormalization and steep.LayerNormalizationGrad over rows. Sums over rows (dscale, dbias) use
// fixed chunks, so that their order does not depend on the number of threads.

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "providers/cpu/axis.h"
#include "providers/cpu/build_kernel.h"
#include "providers/cpu/convert.h"
#include "providers/cpu/kernel.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/layer_norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

using Floats = hn::ScalableTag<float>;
using VecF = hn::Vec<Floats>;

/// Calls body(j, lanes) for each vector of a row; the last may hold fewer lanes.
template <typename Body>
HWY_INLINE void for_each_vector(Floats d, size_t n, Body&& body) {
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + lanes <= n; j += lanes) body(j, lanes);
  if (j < n) body(j, n - j);
}

/// The mean of term(vector at j) over the row. Lanes past the end of the row must be 0.
template <typename Term>
HWY_INLINE float row_mean(Floats d, size_t n, Term&& term) {
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d);
  size_t j = 0;
  for (; j + 2 * lanes <= n; j += 2 * lanes) {
    s0 = hn::Add(s0, term(j, lanes));
    s1 = hn::Add(s1, term(j + lanes, lanes));
  }
  for (; j < n; j += lanes) s0 = hn::Add(s0, term(j, std::min(lanes, n - j)));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1))) / static_cast<float>(n);
}

struct Moments {
  float mean;
  double variance;
};

/// In double precision, for rows whose squares are infinite in float32.
inline Moments wide_moments(const float* x, size_t n) {
  const double size = static_cast<double>(n), mean = std::accumulate(x, x + n, 0.0) / size;
  const double squares = std::accumulate(x, x + n, 0.0, [mean](double sum, float value) {
    return sum + (value - mean) * (value - mean);
  });
  return {static_cast<float>(mean), squares / size};
}

/// y = (x - mean) inv_std scale + bias; bias, means and inv_stds may be null.
void norm_rows(const float* x, const float* scale, const float* bias, float* y, float* means,
               float* inv_stds, int64_t rows, int64_t columns, double epsilon) {
  const Floats d;
  const auto n = static_cast<size_t>(columns);
  for (int64_t i = 0; i < rows; ++i, x += columns, y += columns) {
    Moments of{row_mean(d, n, [&](size_t j, size_t count) { return load_n(d, x + j, count); }), 0};
    const auto narrow_mean = hn::Set(d, of.mean);
    of.variance = row_mean(d, n, [&](size_t j, size_t count) {
      const auto v = hn::Sub(load_n(d, x + j, count), narrow_mean);
      return hn::IfThenElseZero(hn::FirstN(d, count), hn::Mul(v, v));
    });
    if (!std::isfinite(of.variance)) of = wide_moments(x, n);
    const auto mean_v = hn::Set(d, of.mean);
    const auto inv = static_cast<float>(1 / std::sqrt(of.variance + epsilon));
    const auto inv_v = hn::Set(d, inv);
    for_each_vector(d, n, [&](size_t j, size_t count) {
      const auto unit = hn::Mul(hn::Sub(load_n(d, x + j, count), mean_v), inv_v);
      const auto scales = load_n(d, scale + j, count);
      const auto shifted = bias == nullptr ? hn::Mul(unit, scales)
                                           : hn::MulAdd(unit, scales, load_n(d, bias + j, count));
      store_n(shifted, d, y + j, count);
    });
    if (means != nullptr) means[i] = of.mean;
    if (inv_stds != nullptr) inv_stds[i] = inv;
  }
}

/// Computes dx, and adds the rows to dscale and dbias, which must be zero before the first row.
template <typename Dy>
void norm_grad_rows(const Dy* dy, const float* x, const float* scale, const float* means,
                    const float* inv_stds, float* dx, float* dscale, float* dbias, int64_t rows,
                    int64_t columns) {
  const Floats d;
  const auto n = static_cast<size_t>(columns);
  for (int64_t i = 0; i < rows; ++i, dy += columns, x += columns, dx += columns) {
    const auto mean = hn::Set(d, means[i]);
    const auto inv = hn::Set(d, inv_stds[i]);
    const auto unit_at = [&](size_t j, size_t count) {
      return hn::Mul(hn::Sub(load_n(d, x + j, count), mean), inv);
    };
    auto sum_g = hn::Zero(d), sum_gu = hn::Zero(d);
    for_each_vector(d, n, [&](size_t j, size_t count) {
      const auto g = hn::Mul(load_n(d, dy + j, count), load_n(d, scale + j, count));
      sum_g = hn::Add(sum_g, g);  // zero past the end of the row
      sum_gu = hn::MulAdd(g, unit_at(j, count), sum_gu);
    });
    const auto per = hn::Set(d, 1.0F / static_cast<float>(n));
    const auto mean_g = hn::Mul(hn::SumOfLanes(d, sum_g), per);
    const auto mean_gu = hn::Mul(hn::SumOfLanes(d, sum_gu), per);
    for_each_vector(d, n, [&](size_t j, size_t count) {
      const auto upstream = load_n(d, dy + j, count);
      const auto unit = unit_at(j, count);
      const auto g = hn::Mul(upstream, load_n(d, scale + j, count));
      const auto centred = hn::NegMulAdd(unit, mean_gu, hn::Sub(g, mean_g));
      store_n(hn::MulAdd(upstream, unit, load_n(d, dscale + j, count)), d, dscale + j, count);
      store_n(hn::Add(upstream, load_n(d, dbias + j, count)), d, dbias + j, count);
      store_n(hn::Mul(inv, centred), d, dx + j, count);
    });
  }
}

void norm_grad_f32(const float* dy, const float* x, const float* scale, const float* means,
                   const float* inv_stds, float* dx, float* dscale, float* dbias, int64_t rows,
                   int64_t columns) {
  norm_grad_rows(dy, x, scale, means, inv_stds, dx, dscale, dbias, rows, columns);
}
void norm_grad_bf16(const Bf16* dy, const float* x, const float* scale, const float* means,
                    const float* inv_stds, float* dx, float* dscale, float* dbias, int64_t rows,
                    int64_t columns) {
  norm_grad_rows(dy, x, scale, means, inv_stds, dx, dscale, dbias, rows, columns);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(norm_rows);
HWY_EXPORT(norm_grad_f32);
HWY_EXPORT(norm_grad_bf16);

void norm(const float* x, const float* scale, const float* bias, float* y, float* means,
          float* inv_stds, int64_t rows, int64_t columns, double epsilon) {
  HWY_DYNAMIC_DISPATCH(norm_rows)(x, scale, bias, y, means, inv_stds, rows, columns, epsilon);
}

void norm_grad(const float* dy, const float* x, const float* scale, const float* means,
               const float* inv_stds, float* dx, float* dscale, float* dbias, int64_t rows,
               int64_t columns) {
  HWY_DYNAMIC_DISPATCH(norm_grad_f32)
  (dy, x, scale, means, inv_stds, dx, dscale, dbias, rows, columns);
}
void norm_grad(const Bf16* dy, const float* x, const float* scale, const float* means,
               const float* inv_stds, float* dx, float* dscale, float* dbias, int64_t rows,
               int64_t columns) {
  HWY_DYNAMIC_DISPATCH(norm_grad_bf16)
  (dy, x, scale, means, inv_stds, dx, dscale, dbias, rows, columns);
}

template <typename Stat>
void norm(const double* x, const double* scale, const double* bias, double* y, Stat* means,
          Stat* inv_stds, int64_t rows, int64_t n, double epsilon) {
  for (int64_t i = 0; i < rows; ++i, x += n, y += n) {
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < n; ++j) mean += x[j];
    mean /= static_cast<double>(n);
    for (int64_t j = 0; j < n; ++j) variance += (x[j] - mean) * (x[j] - mean);
    const double inv = 1 / std::sqrt(variance / static_cast<double>(n) + epsilon);
    for (int64_t j = 0; j < n; ++j) {
      y[j] = (x[j] - mean) * inv * scale[j] + (bias == nullptr ? 0 : bias[j]);
    }
    if (means != nullptr) means[i] = static_cast<Stat>(mean);
    if (inv_stds != nullptr) inv_stds[i] = static_cast<Stat>(inv);
  }
}

template <typename Stat>
void norm_grad(const double* dy, const double* x, const double* scale, const Stat* means,
               const Stat* inv_stds, double* dx, double* dscale, double* dbias, int64_t rows,
               int64_t n) {
  for (int64_t i = 0; i < rows; ++i, dy += n, x += n, dx += n) {
    const double mean = means[i], inv = inv_stds[i];
    double mean_g = 0, mean_gu = 0;
    for (int64_t j = 0; j < n; ++j) {
      mean_g += dy[j] * scale[j] / static_cast<double>(n);
      mean_gu += dy[j] * scale[j] * (x[j] - mean) * inv / static_cast<double>(n);
    }
    for (int64_t j = 0; j < n; ++j) {
      const double upstream = dy[j], unit = (x[j] - mean) * inv;
      dscale[j] += upstream * unit;
      dbias[j] += upstream;
      dx[j] = inv * (upstream * scale[j] - mean_g - unit * mean_gu);
    }
  }
}

/// T: dtype of the data; Stat: dtype of Mean and InvStdDev, which ONNX keeps in float32 for all T.
template <typename T, typename Stat>
class LayerNorm final : public Kernel {
 public:
  LayerNorm(const NodeSpec& node, AxisSplit split)
      : rows_(split.outer),
        columns_(split.extent),
        epsilon_(node.attrs.real("epsilon")),
        bias_(node.in(2).present()),
        mean_(node.out(1).present()),
        inv_std_(node.out(2).present()) {
    may_share = {{0, 0}};
  }

  void execute(const KernelArgs& args) const override {
    const T* bias = bias_ ? args.input<T>(2) : nullptr;
    Stat* mean = mean_ ? args.output<Stat>(1) : nullptr;
    Stat* inv_std = inv_std_ ? args.output<Stat>(2) : nullptr;
    const int64_t grain = grain_of(16384, columns_);
    parallel_for(rows_, grain, [&](int64_t begin, int64_t end) {
      norm(args.input<T>(0) + begin * columns_, args.input<T>(1), bias,
           args.output<T>(0) + begin * columns_, mean == nullptr ? mean : mean + begin,
           inv_std == nullptr ? inv_std : inv_std + begin, end - begin, columns_, epsilon_);
    });
  }

 private:
  int64_t rows_, columns_;
  double epsilon_;
  bool bias_, mean_, inv_std_;
};

template <typename T, typename Stat, typename Dy>
class LayerNormGradOf final : public Kernel {
 public:
  explicit LayerNormGradOf(const NodeSpec& node, AxisSplit split)
      : rows_(split.outer),
        columns_(split.extent),
        chunks_(std::clamp<int64_t>(rows_ / kMinRows, 1, kMaxChunks)),
        dscale_(node.out(1).present()),
        dbias_(node.out(2).present()) {
    may_share = {{0, 0}, {1, 0}};
    // The kernel needs memory for dx even if the graph does not use it.
    dx_ = node.out(0).present();
    scratch_bytes = sizeof(T) * static_cast<size_t>(columns_ * (2 * chunks_ + (dx_ ? 0 : rows_)));
  }

  void execute(const KernelArgs& args) const override {
    T* sums = static_cast<T*>(args.scratch);  // [chunk, {dscale, dbias}, column]
    T* dx = dx_ ? args.output<T>(0) : sums + 2 * chunks_ * columns_;
    const int64_t chunk_cost = std::max<int64_t>(rows_ / chunks_ * columns_, 1);
    parallel_for(chunks_, grain_of(16384, chunk_cost), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const int64_t first = rows_ * c / chunks_;
        const int64_t at = first * columns_;
        T* dscale = sums + 2 * c * columns_;
        std::fill_n(dscale, 2 * columns_, T{0});
        norm_grad(args.input<Dy>(0) + at, args.input<T>(1) + at, args.input<T>(2),
                  args.input<Stat>(3) + first, args.input<Stat>(4) + first, dx + at, dscale,
                  dscale + columns_, rows_ * (c + 1) / chunks_ - first, columns_);
      }
    });
    if (dscale_) add_chunks(sums, args.output<T>(1));
    if (dbias_) add_chunks(sums + columns_, args.output<T>(2));
  }

 private:
  static constexpr int64_t kMinRows = 16;
  static constexpr int64_t kMaxChunks = 64;

  void add_chunks(const T* sums, T* total) const {
    parallel_for(columns_, std::max<int64_t>(64, 32768 / chunks_), [&](int64_t begin, int64_t end) {
      std::copy(sums + begin, sums + end, total + begin);
      for (int64_t c = 1; c < chunks_; ++c) {
        const T* chunk = sums + 2 * c * columns_;
        for (int64_t j = begin; j < end; ++j) total[j] += chunk[j];
      }
    });
  }

  int64_t rows_, columns_, chunks_;
  bool dx_ = true, dscale_, dbias_;
};

template <typename T, typename Stat>
using LayerNormGrad = LayerNormGradOf<T, Stat, T>;

template <template <typename, typename> class K>
std::unique_ptr<Kernel> make(const NodeSpec& node, std::string* why_not) {
  const bool grad = node.op == "steep.LayerNormalizationGrad";
  const Operand& x = node.in(grad ? 1 : 0);
  const Operand& scale = node.in(grad ? 2 : 1);
  const auto axis = axis_from_front(node.attrs.integer("axis"), x.rank());
  if (!axis) return decline(why_not, "the axis is out of range");
  const AxisSplit split = split_around(x.dims, *axis, x.rank());
  const Operand& bias = grad ? scale : node.in(2);
  if (scale.size() != split.extent || (bias.present() && bias.size() != split.extent)) {
    *why_not = "scale or bias does not have the shape of the normalised axes";
    return nullptr;
  }
  DType stat = x.dtype;
  for (size_t i : {1, 2}) {
    const Operand& s = grad ? node.in(i + 2) : node.out(i);
    if (s.present()) stat = s.dtype;
  }
  if (grad && node.in(0).dtype == DType::bf16 && x.dtype == DType::f32 &&
      scale.dtype == DType::f32 && stat == DType::f32) {
    return std::make_unique<LayerNormGradOf<float, float, Bf16>>(node, split);
  }
  if (grad && node.in(0).dtype != x.dtype) {
    *why_not = "dy is neither of x's dtype nor bfloat16";
    return nullptr;
  }
  if (x.dtype == scale.dtype && x.dtype == DType::f32 && stat == DType::f32) {
    return std::make_unique<K<float, float>>(node, split);
  }
  if (x.dtype == scale.dtype && x.dtype == DType::f64) {
    if (stat == DType::f32) return std::make_unique<K<double, float>>(node, split);
    if (stat == DType::f64) return std::make_unique<K<double, double>>(node, split);
  }
  *why_not = "dtypes are not all float32 or all float64";
  return nullptr;
}

}  // namespace

void register_layer_norm(std::vector<Candidate>& list) {
  list.push_back({"LayerNormalization", "rows", make<LayerNorm>});
  list.push_back({"steep.LayerNormalizationGrad", "rows", make<LayerNormGrad>});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
