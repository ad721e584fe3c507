// steep.BatchNorm and steep.BatchNormGrad. One thread processes a channel from sums to results, so
// that sums do not depend on the number of threads, and the second pass finds the channel in the
// cache. oneDNN's kernel for this layout takes 3.7 times as long (15.4 ms against 4.2, forward and
// backward, on 32x64x56x56), and its single precision sums lose two digits where the mean is 30
// times the deviation.

#include <cmath>

#include "providers/cpu/build_kernel.h"
#include "providers/cpu/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/batch_norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

template <typename T>
using Tag = hn::ScalableTag<T>;

template <typename T>
HWY_INLINE double total(hn::Vec<Tag<T>> v) {
  return static_cast<double>(hn::GetLane(hn::SumOfLanes(Tag<T>(), v)));
}

/// Adds Σ a(j) and Σ b(j) over the elements. f(j, count, &a, &b) returns a and b as vectors whose
/// lanes past `count` are 0. Partial float sums are kept short, because a plane may have millions
/// of elements.
template <typename T, typename F>
HWY_INLINE void add_two_sums(size_t n, double* a, double* b, F&& f) {
  constexpr size_t kStretch = 4096;
  const Tag<T> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t begin = 0; begin < n; begin += kStretch) {
    const size_t end = std::min(n, begin + kStretch);
    auto a0 = hn::Zero(d), a1 = a0, b0 = a0, b1 = a0;
    size_t j = begin;
    for (; j + 2 * lanes <= end; j += 2 * lanes) {
      f(j, lanes, a0, b0);
      f(j + lanes, lanes, a1, b1);
    }
    for (; j < end; j += lanes) f(j, std::min(lanes, end - j), a0, b0);
    *a += total<T>(hn::Add(a0, a1));
    *b += total<T>(hn::Add(b0, b1));
  }
}

/// Adds Σ (x - shift) and Σ (x - shift)².
template <typename T>
void moments(const T* x, size_t n, T shift, double* sum, double* squares) {
  const Tag<T> d;
  const auto origin = hn::Set(d, shift);
  add_two_sums<T>(n, sum, squares, [&](size_t j, size_t count, auto& s, auto& q) {
    const auto v =
        hn::IfThenElseZero(hn::FirstN(d, count), hn::Sub(load_n(d, x + j, count), origin));
    s = hn::Add(s, v);
    q = hn::MulAdd(v, v, q);
  });
}

/// Adds Σ dy and Σ dy (x - mean).
template <typename T>
void products(const T* dy, const T* x, size_t n, T mean, double* sum, double* with_x) {
  const Tag<T> d;
  const auto origin = hn::Set(d, mean);
  add_two_sums<T>(n, sum, with_x, [&](size_t j, size_t count, auto& s, auto& q) {
    const auto v = load_n(d, dy + j, count);
    s = hn::Add(s, v);
    q = hn::MulAdd(v, hn::Sub(load_n(d, x + j, count), origin), q);
  });
}

/// y = (x - mean) factor + bias
template <typename T>
void scale_shift(const T* x, size_t n, T mean, T factor, T bias, T* y) {
  const Tag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, mean), f = hn::Set(d, factor), b = hn::Set(d, bias);
  for (size_t j = 0; j < n; j += lanes) {
    const size_t count = std::min(lanes, n - j);
    store_n(hn::MulAdd(hn::Sub(load_n(d, x + j, count), m), f, b), d, y + j, count);
  }
}

/// dx = (dy - mean_dy - (x - mean) slope) factor
template <typename T>
void gradient(const T* dy, const T* x, size_t n, T mean, T mean_dy, T slope, T factor, T* dx) {
  const Tag<T> d;
  const size_t lanes = hn::Lanes(d);
  const auto m = hn::Set(d, mean), md = hn::Set(d, mean_dy), s = hn::Set(d, slope),
             f = hn::Set(d, factor);
  for (size_t j = 0; j < n; j += lanes) {
    const size_t count = std::min(lanes, n - j);
    const auto centred = hn::Sub(load_n(d, dy + j, count), md);
    const auto distance = hn::Sub(load_n(d, x + j, count), m);
    store_n(hn::Mul(hn::NegMulAdd(distance, s, centred), f), d, dx + j, count);
  }
}

#define STEEP_BATCH_NORM(T, suffix)                                                               \
  void moments_##suffix(const T* x, size_t n, T shift, double* sum, double* squares) {            \
    moments(x, n, shift, sum, squares);                                                           \
  }                                                                                               \
  void products_##suffix(const T* dy, const T* x, size_t n, T mean, double* sum, double* with) {  \
    products(dy, x, n, mean, sum, with);                                                          \
  }                                                                                               \
  void scale_shift_##suffix(const T* x, size_t n, T mean, T factor, T bias, T* y) {               \
    scale_shift(x, n, mean, factor, bias, y);                                                     \
  }                                                                                               \
  void gradient_##suffix(const T* dy, const T* x, size_t n, T mean, T mean_dy, T slope, T factor, \
                         T* dx) {                                                                 \
    gradient(dy, x, n, mean, mean_dy, slope, factor, dx);                                         \
  }
STEEP_BATCH_NORM(float, f32)
STEEP_BATCH_NORM(double, f64)
#undef STEEP_BATCH_NORM

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

#define STEEP_BATCH_NORM(T, suffix)                                                               \
  HWY_EXPORT(moments_##suffix);                                                                   \
  HWY_EXPORT(products_##suffix);                                                                  \
  HWY_EXPORT(scale_shift_##suffix);                                                               \
  HWY_EXPORT(gradient_##suffix);                                                                  \
  void moments(const T* x, size_t n, T shift, double* sum, double* squares) {                     \
    HWY_DYNAMIC_DISPATCH(moments_##suffix)(x, n, shift, sum, squares);                            \
  }                                                                                               \
  void products(const T* dy, const T* x, size_t n, T mean, double* sum, double* with) {           \
    HWY_DYNAMIC_DISPATCH(products_##suffix)(dy, x, n, mean, sum, with);                           \
  }                                                                                               \
  void scale_shift(const T* x, size_t n, T mean, T factor, T bias, T* y) {                        \
    HWY_DYNAMIC_DISPATCH(scale_shift_##suffix)(x, n, mean, factor, bias, y);                      \
  }                                                                                               \
  void gradient(const T* dy, const T* x, size_t n, T mean, T mean_dy, T slope, T factor, T* dx) { \
    HWY_DYNAMIC_DISPATCH(gradient_##suffix)(dy, x, n, mean, mean_dy, slope, factor, dx);          \
  }
STEEP_BATCH_NORM(float, f32)
STEEP_BATCH_NORM(double, f64)
#undef STEEP_BATCH_NORM

/// [batch, channel, plane].
struct Channels {
  int64_t batch, count, plane;
  double epsilon;

  explicit Channels(const NodeSpec& node, const Dims& x)
      : batch(x[0]),
        count(x[1]),
        plane(extent(x, 2, static_cast<int64_t>(x.size()))),
        epsilon(node.attrs.real("epsilon")) {}

  int64_t at(int64_t n, int64_t c) const { return (n * count + c) * plane; }
  double elements() const { return static_cast<double>(batch * plane); }
  int64_t grain() const { return grain_of(16384, batch * plane); }
};

template <typename T>
struct Normalize {
  Channels channels;
  bool y, mean, variance;

  void operator()(const KernelArgs& args) const {
    const T* x = args.input<T>(0);
    const auto plane = static_cast<size_t>(channels.plane);
    parallel_for(channels.count, channels.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        // Shift by one of the elements: squares would lose digits if the mean were far from 0.
        const T shift = x[channels.at(0, c)];
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < channels.batch; ++n) {
          moments(x + channels.at(n, c), plane, shift, &sum, &squares);
        }
        const double offset = sum / channels.elements();
        const double spread = std::max(0.0, squares / channels.elements() - offset * offset);
        const double centre = static_cast<double>(shift) + offset;
        if (mean) args.output<T>(1)[c] = static_cast<T>(centre);
        if (variance) args.output<T>(2)[c] = static_cast<T>(spread);
        if (!y) continue;
        const double factor =
            static_cast<double>(args.input<T>(1)[c]) / std::sqrt(spread + channels.epsilon);
        for (int64_t n = 0; n < channels.batch; ++n) {
          const int64_t at = channels.at(n, c);
          scale_shift(x + at, plane, static_cast<T>(centre), static_cast<T>(factor),
                      args.input<T>(2)[c], args.output<T>(0) + at);
        }
      }
    });
  }
};

template <typename T>
struct NormalizeGrad {
  Channels channels;
  bool dx, dscale, dbias;

  void operator()(const KernelArgs& args) const {
    const T* dy = args.input<T>(0);
    const T* x = args.input<T>(1);
    const auto plane = static_cast<size_t>(channels.plane);
    parallel_for(channels.count, channels.grain(), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        const T mean = args.input<T>(3)[c];
        const double variance = static_cast<double>(args.input<T>(4)[c]) + channels.epsilon;
        const double inv = 1 / std::sqrt(variance);
        double sum = 0, with_x = 0;
        for (int64_t n = 0; n < channels.batch; ++n) {
          const int64_t at = channels.at(n, c);
          products(dy + at, x + at, plane, mean, &sum, &with_x);
        }
        if (dx) {
          const double factor = static_cast<double>(args.input<T>(2)[c]) * inv;
          for (int64_t n = 0; n < channels.batch; ++n) {
            const int64_t at = channels.at(n, c);
            gradient(dy + at, x + at, plane, mean, static_cast<T>(sum / channels.elements()),
                     static_cast<T>(with_x / channels.elements() / variance),
                     static_cast<T>(factor), args.output<T>(0) + at);
          }
        }
        if (dscale) args.output<T>(1)[c] = static_cast<T>(with_x * inv);
        if (dbias) args.output<T>(2)[c] = static_cast<T>(sum);
      }
    });
  }
};

std::unique_ptr<Kernel> make_batch_norm(const NodeSpec& node, std::string* why_not) {
  const bool backward = node.op == "steep.BatchNormGrad";
  const Operand& x = node.in(backward ? 1 : 0);
  constexpr int64_t kShortest = 8;  // shorter planes are faster summed along the batch
  if (x.size() == 0) return decline(why_not, "empty input");
  const Channels channels(node, x.dims);
  if (channels.plane < kShortest) return decline(why_not, "planes are short");
  if (backward && node.in(0).dims != x.dims) return decline(why_not, "dy and x differ in shape");
  for (const Operand& v : node.inputs) {
    if (v.dtype != x.dtype) return decline(why_not, "the inputs differ in dtype");
  }
  const bool a = node.out(0).present(), b = node.out(1).present(), c = node.out(2).present();
  auto make = [&]<typename T>(T*) -> std::unique_ptr<Kernel> {
    if (backward) return kernel_from(NormalizeGrad<T>{channels, a, b, c}, 0, {{0, 0}, {1, 0}});
    return kernel_from(Normalize<T>{channels, a, b, c}, 0, {{0, 0}});
  };
  if (x.dtype == DType::f32) return make(static_cast<float*>(nullptr));
  if (x.dtype == DType::f64) return make(static_cast<double*>(nullptr));
  return decline(why_not, "dtype is {}", name_of(x.dtype));
}

}  // namespace

void register_batch_norm(std::vector<Candidate>& list) {
  list.push_back({"steep.BatchNorm", "simd", make_batch_norm});
  list.push_back({"steep.BatchNormGrad", "simd", make_batch_norm});
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
