// Products so small that waking a second thread, or calling oneDNN, would cost more than the
// arithmetic.

#include <fmt/format.h>

#include <algorithm>

#include "providers/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/matmul_small.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/matmul_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// Each panel of b stays in the first-level cache while all rows of a are multiplied with it.
template <typename T>
void multiply_rows(const Tile<T>& t) {
  const hn::ScalableTag<T> d;
  const int64_t widest = panel_width(d);
  for (int64_t j = 0; j < t.p.n; j += widest) panel(d, t, 0, t.p.m, j, std::min(widest, t.p.n - j));
}

// Functions without types of this target, because the dispatcher does not have these types.
void multiply_rows_f32(const MatMulProblem& p, const float* a, const float* b, int64_t b_k,
                       const float* bias, float* y) {
  multiply_rows<float>({p, a, b, b_k, bias, y, p.k});
}
void multiply_rows_f64(const MatMulProblem& p, const double* a, const double* b, int64_t b_k,
                       const double* bias, double* y) {
  multiply_rows<double>({p, a, b, b_k, bias, y, p.k});
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

/// For any strides: dot products.
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

/// Copies b to [k, n] without gaps.
template <typename T>
void pack(const MatMulProblem& p, const T* b, T* packed) {
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t k = 0; k < p.k; ++k) packed[k * p.n + j] = b[k * p.b_k + j * p.b_n];
  }
}

// Limits in multiplications: what one core does in the time that oneDNN needs to start and stop
// threads.
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

  /// The number of multiplications up to which this kernel is faster.
  int64_t most() const {
    return way_ == Way::rows ? kSmallRows : way_ == Way::packed_rows ? kSmallPacked : kSmallDots;
  }

  void execute(const KernelArgs& args) const override {
    const T* a = args.input<T>(p_.swapped ? 1 : 0);
    const T* b = args.input<T>(p_.swapped ? 0 : 1);
    multiply(args, 0, a, b, args.output<T>(0));
  }

 private:
  /// In ascending order of preference.
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
