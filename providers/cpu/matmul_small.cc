// Products so small that waking a second thread, or oneDNN, costs more than the arithmetic.

#include <fmt/format.h>

#include <algorithm>

#include "providers/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/matmul_small.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// Where b and y have unit stride along n. `b_k` is b's stride along k, `bias` may be null.
template <typename T>
struct Tile {
  const MatMulProblem& p;
  const T* a;
  const T* b;
  int64_t b_k;
  const T* bias;
  T* y;
};

#if HWY_MAX_BYTES >= 64
constexpr size_t kWidest = 4;  // vectors; with four rows and a factor they fit in 32 registers
#else
constexpr size_t kWidest = 2;  // in 16
#endif
/// Rows of a block: enough sums for the latency of a multiply-add.
template <size_t kVectors>
constexpr int64_t kTall = kVectors == 1 ? 8 : 4;

/// Rows [i, i + kRows) of y, `count` columns from j, which are kVectors vectors at most. Every loop
/// over sums is unrolled, since an array with a variable index lies in memory.
template <size_t kRows, size_t kVectors, class D, typename T = hn::TFromD<D>>
HWY_INLINE void block(D d, const Tile<T>& t, int64_t i, int64_t j, size_t count) {
  constexpr size_t kLast = kVectors - 1;
  const MatMulProblem& p = t.p;
  const size_t lanes = hn::Lanes(d);
  const size_t rest = count - kLast * lanes;
  const int64_t a_m = p.a_m, a_k = p.a_k, b_k = t.b_k, depth = p.k;
  const T* a = t.a + i * a_m;
  const T* b = t.b + j;
  hn::Vec<D> sum[kRows][kVectors];
  HWY_UNROLL(8) for (size_t r = 0; r < kRows; ++r) {
    HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (int64_t k = 0; k < depth; ++k, a += a_k, b += b_k) {
    hn::Vec<D> w[kVectors];
    HWY_UNROLL(4) for (size_t v = 0; v < kLast; ++v) w[v] = hn::LoadU(d, b + v * lanes);
    w[kLast] = load_n(d, b + kLast * lanes, rest);
    HWY_UNROLL(8) for (size_t r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, a[static_cast<int64_t>(r) * a_m]);
      HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(factor, w[v], sum[r][v]);
      }
    }
  }
  const auto alpha = hn::Set(d, static_cast<T>(p.alpha));
  const bool bias_on_rows = p.bias_on_rows, relu = p.relu;
  HWY_UNROLL(8) for (size_t r = 0; r < kRows; ++r) {
    const int64_t row = i + static_cast<int64_t>(r);
    T* y = t.y + row * p.y_m + j;
    HWY_UNROLL(4) for (size_t v = 0; v < kVectors; ++v) {
      const size_t n = v == kLast ? rest : lanes;
      auto value = hn::Mul(alpha, sum[r][v]);
      if (t.bias != nullptr) {
        value = hn::Add(
            value, bias_on_rows ? hn::Set(d, t.bias[row]) : load_n(d, t.bias + j + v * lanes, n));
      }
      if (relu) {  // NaN stays NaN
        value = hn::IfThenElse(hn::Lt(value, hn::Zero(d)), hn::Zero(d), value);
      }
      store_n(value, d, y + v * lanes, n);
    }
  }
}

template <size_t kVectors, class D, typename T = hn::TFromD<D>>
void columns(D d, const Tile<T>& t, int64_t j, size_t count) {
  constexpr int64_t tall = kTall<kVectors>;
  int64_t i = 0;
  for (; i + tall <= t.p.m; i += tall) block<tall, kVectors>(d, t, i, j, count);
  for (; i < t.p.m; ++i) block<1, kVectors>(d, t, i, j, count);
}

/// Panels of b stay in the first cache while all rows of a pass over them.
template <typename T>
void multiply_rows(const Tile<T>& t) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t widest = static_cast<int64_t>(kWidest) * lanes;
  for (int64_t j = 0; j < t.p.n; j += widest) {
    const int64_t count = std::min(widest, t.p.n - j);
    switch ((count + lanes - 1) / lanes) {
      case 1: columns<1>(d, t, j, count); break;
      case 2: columns<2>(d, t, j, count); break;
#if HWY_MAX_BYTES >= 64
      case 3: columns<3>(d, t, j, count); break;
      case 4: columns<4>(d, t, j, count); break;
#endif
    }
  }
}

// Without types of this target: the dispatcher does not know them.
void multiply_rows_f32(const MatMulProblem& p, const float* a, const float* b, int64_t b_k,
                       const float* bias, float* y) {
  multiply_rows<float>({p, a, b, b_k, bias, y});
}
void multiply_rows_f64(const MatMulProblem& p, const double* a, const double* b, int64_t b_k,
                       const double* bias, double* y) {
  multiply_rows<double>({p, a, b, b_k, bias, y});
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(multiply_rows_f32);
HWY_EXPORT(multiply_rows_f64);

void multiply_rows(const MatMulProblem& p, const float* a, const float* b, int64_t b_k,
                   const float* bias, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_f32)(p, a, b, b_k, bias, y);
}
void multiply_rows(const MatMulProblem& p, const double* a, const double* b, int64_t b_k,
                   const double* bias, double* y) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_f64)(p, a, b, b_k, bias, y);
}

/// Any strides: dot products.
template <typename T>
void multiply_dots(const MatMulProblem& p, const T* a, const T* b, T* y) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      const T* x = a + i * p.a_m;
      const T* w = b + j * p.b_n;
      T sum[4] = {};
      int64_t k = 0;
      for (; k + 4 <= p.k; k += 4) {
        for (int64_t u = 0; u < 4; ++u) sum[u] += x[(k + u) * p.a_k] * w[(k + u) * p.b_k];
      }
      for (; k < p.k; ++k) sum[0] += x[k * p.a_k] * w[k * p.b_k];
      y[i * p.y_m + j * p.y_n] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
  }
}

template <typename T>
void finish(const MatMulProblem& p, const T* bias, T* y) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      T& out = y[i * p.y_m + j * p.y_n];
      out = static_cast<T>(p.alpha) * out + (p.bias ? bias[p.bias_on_rows ? i : j] : T{0});
      if (p.relu && out < 0) out = 0;  // NaN stays NaN
    }
  }
}

/// b as [k, n] without gaps.
template <typename T>
void pack(const MatMulProblem& p, const T* b, T* packed) {
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t k = 0; k < p.k; ++k) packed[k * p.n + j] = b[k * p.b_k + j * p.b_n];
  }
}

// In multiplications: what one core does in the time in which oneDNN starts and stops its threads.
constexpr int64_t kSmallRows = int64_t{1} << 19;
constexpr int64_t kSmallPacked = int64_t{1} << 18;
constexpr int64_t kSmallDots = int64_t{1} << 15;

template <typename T>
class SmallMatMul final : public Kernel {
 public:
  explicit SmallMatMul(MatMulProblem problem) : p_(std::move(problem)) {
    if (way_of(p_.swap()) > way_of(p_)) p_ = p_.swap();
    way_ = way_of(p_);
    plain_ = p_.alpha == 1 && !p_.bias && !p_.relu;
    flops = 2.0 * static_cast<double>(p_.multiplications());
    if (way_ == Way::packed_rows) scratch_bytes = static_cast<size_t>(p_.k * p_.n) * sizeof(T);
  }

  /// Multiplications up to which it is worth taking.
  int64_t most() const {
    return way_ == Way::rows ? kSmallRows : way_ == Way::packed_rows ? kSmallPacked : kSmallDots;
  }

  void execute(const KernelArgs& args) const override {
    const T* a = args.input<T>(p_.swapped ? 1 : 0);
    const T* b = args.input<T>(p_.swapped ? 0 : 1);
    multiply(args, 0, a, b, args.output<T>(0));
  }

 private:
  /// In the order of preference.
  enum class Way { dots, packed_rows, rows };

  static Way way_of(const MatMulProblem& p) {
    if (p.y_n != 1 || p.n < 4) return Way::dots;
    if (p.b_n == 1) return Way::rows;
    return p.m >= 4 ? Way::packed_rows : Way::dots;
  }

  void multiply(const KernelArgs& args, size_t depth, const T* a, const T* b, T* y) const {
    if (depth < p_.batch.size()) {
      for (int64_t i = 0; i < p_.batch[depth]; ++i) {
        multiply(args, depth + 1, a + i * p_.a_batch[depth], b + i * p_.b_batch[depth],
                 y + i * p_.y_batch[depth]);
      }
      return;
    }
    const T* bias = p_.bias ? args.input<T>(2) : nullptr;
    if (way_ == Way::dots) {
      multiply_dots(p_, a, b, y);
      if (!plain_) finish(p_, bias, y);
    } else if (way_ == Way::rows) {
      multiply_rows(p_, a, b, p_.b_k, bias, y);
    } else {
      T* packed = static_cast<T*>(args.scratch);
      pack(p_, b, packed);
      multiply_rows(p_, a, packed, p_.n, bias, y);
    }
  }

  MatMulProblem p_;
  Way way_ = Way::dots;
  bool plain_ = false;
};

template <typename T>
std::unique_ptr<Kernel> make(const MatMulProblem& problem, std::string* why_not) {
  auto kernel = std::make_unique<SmallMatMul<T>>(problem);
  if (problem.multiplications() <= kernel->most()) return kernel;
  *why_not = fmt::format("more than {} multiplications", kernel->most());
  return nullptr;
}

}  // namespace

std::unique_ptr<Kernel> make_small_matmul(const NodeSpec& node, std::string* why_not) {
  auto problem = read_matmul(node, why_not);
  if (!problem) return nullptr;
  if (problem->dtype == DType::f32) return make<float>(*problem, why_not);
  if (problem->dtype == DType::f64) return make<double>(*problem, why_not);
  *why_not = "dtype is neither float32 nor float64";
  return nullptr;
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
