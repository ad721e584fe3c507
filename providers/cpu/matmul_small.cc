// Products so small that waking a second thread, or oneDNN, costs more than the arithmetic.

#include <functional>

#include "providers/cpu/matmul.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/matmul_small.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

/// One row of y where b and y have unit stride along n. `count` is at most kVectors vectors.
template <size_t kVectors, class D, typename T = hn::TFromD<D>>
HWY_INLINE void row_block(D d, const MatMulProblem& p, const T* a, const T* b, T* y, size_t count) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kVectors];
  for (auto& s : sum) s = hn::Zero(d);
  for (int64_t k = 0; k < p.k; ++k) {
    const auto factor = hn::Set(d, a[k * p.a_k]);
    const T* row = b + k * p.b_k;
    for (size_t v = 0; v + 1 < kVectors; ++v) {
      sum[v] = hn::MulAdd(factor, hn::LoadU(d, row + v * lanes), sum[v]);
    }
    constexpr size_t kLast = kVectors - 1;
    const auto last = load_n(d, row + kLast * lanes, count - kLast * lanes);
    sum[kLast] = hn::MulAdd(factor, last, sum[kLast]);
  }
  for (size_t v = 0; v + 1 < kVectors; ++v) hn::StoreU(sum[v], d, y + v * lanes);
  store_n(sum[kVectors - 1], d, y + (kVectors - 1) * lanes, count - (kVectors - 1) * lanes);
}

template <typename T>
void multiply_rows(const MatMulProblem& p, const T* a, const T* b, T* y) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < p.m; ++i) {
    const T* a_row = a + i * p.a_m;
    T* y_row = y + i * p.y_m;
    for (int64_t j = 0; j < p.n; j += 4 * lanes) {
      const int64_t count = std::min<int64_t>(4 * lanes, p.n - j);
      switch ((count + lanes - 1) / lanes) {
        case 1: row_block<1>(d, p, a_row, b + j, y_row + j, count); break;
        case 2: row_block<2>(d, p, a_row, b + j, y_row + j, count); break;
        case 3: row_block<3>(d, p, a_row, b + j, y_row + j, count); break;
        default: row_block<4>(d, p, a_row, b + j, y_row + j, count);
      }
    }
  }
}

void multiply_rows_f32(const MatMulProblem& p, const void* a, const void* b, void* y) {
  multiply_rows(p, static_cast<const float*>(a), static_cast<const float*>(b),
                static_cast<float*>(y));
}
void multiply_rows_f64(const MatMulProblem& p, const void* a, const void* b, void* y) {
  multiply_rows(p, static_cast<const double*>(a), static_cast<const double*>(b),
                static_cast<double*>(y));
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(multiply_rows_f32);
HWY_EXPORT(multiply_rows_f64);

void multiply_rows(const MatMulProblem& p, const float* a, const float* b, float* y) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_f32)(p, a, b, y);
}
void multiply_rows(const MatMulProblem& p, const double* a, const double* b, double* y) {
  HWY_DYNAMIC_DISPATCH(multiply_rows_f64)(p, a, b, y);
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

template <typename T>
class SmallMatMul final : public Kernel {
 public:
  explicit SmallMatMul(MatMulProblem problem) : p_(std::move(problem)) {
    if (!has_unit_rows(p_) && has_unit_rows(p_.swap())) p_ = p_.swap();
    unit_rows_ = has_unit_rows(p_);
    plain_ = p_.alpha == 1 && !p_.bias && !p_.relu;
  }

  void execute(const KernelArgs& args) const override {
    const T* a = args.input<T>(p_.swapped ? 1 : 0);
    const T* b = args.input<T>(p_.swapped ? 0 : 1);
    multiply(0, a, b, p_.bias ? args.input<T>(2) : nullptr, args.output<T>(0));
  }

 private:
  static bool has_unit_rows(const MatMulProblem& p) { return p.b_n == 1 && p.y_n == 1 && p.n >= 4; }

  void multiply(size_t depth, const T* a, const T* b, const T* bias, T* y) const {
    if (depth < p_.batch.size()) {
      for (int64_t i = 0; i < p_.batch[depth]; ++i) {
        multiply(depth + 1, a + i * p_.a_batch[depth], b + i * p_.b_batch[depth], bias,
                 y + i * p_.y_batch[depth]);
      }
      return;
    }
    if (unit_rows_) {
      multiply_rows(p_, a, b, y);
    } else {
      multiply_dots(p_, a, b, y);
    }
    if (!plain_) finish(p_, bias, y);
  }

  MatMulProblem p_;
  bool unit_rows_ = false;
  bool plain_ = false;
};

constexpr int64_t kSmall = int64_t{32} << 10;

}  // namespace

std::unique_ptr<Kernel> make_small_matmul(const NodeSpec& node, std::string* why_not) {
  auto problem = read_matmul(node, why_not);
  if (!problem) return nullptr;
  if (problem->multiplications() > kSmall) {
    *why_not = "more than 32768 multiplications";
    return nullptr;
  }
  if (problem->dtype == DType::f32) return std::make_unique<SmallMatMul<float>>(*problem);
  if (problem->dtype == DType::f64) return std::make_unique<SmallMatMul<double>>(*problem);
  *why_not = "dtype is neither float32 nor float64";
  return nullptr;
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
