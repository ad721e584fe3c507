// The activation functions of recurrent layers, and their matrix products.

#include <algorithm>
#include <cmath>

#include "providers/cpu/parallel.h"
#include "providers/cpu/recurrent.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "providers/cpu/recurrent_functions.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file again.
#include "providers/cpu/simd-inl.h"
#include "providers/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

template <typename F>
HWY_INLINE void each(float* v, size_t n, F&& f) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < n; i += lanes) {
    const size_t count = std::min(lanes, n - i);
    store_n(f(d, load_n(d, v + i, count)), d, v + i, count);
  }
}

void sigmoid_all(float* v, size_t n) {
  each(v, n, [](auto d, auto x) { return sigmoid_f32(d, x); });
}
void tanh_all(float* v, size_t n) {
  each(v, n, [](auto d, auto x) { return tanh_f32(d, x); });
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace steep::cpu {
namespace {

HWY_EXPORT(sigmoid_all);
HWY_EXPORT(tanh_all);

}  // namespace

double Activation::at(double x) const {
  x = std::isnan(x) ? x : std::clamp(x, -clip, clip);
  switch (kind) {
    case Kind::affine: return alpha * x + beta;
    case Kind::elu: return x < 0 ? alpha * std::expm1(x) : x;
    case Kind::hard_sigmoid: return std::clamp(alpha * x + beta, 0.0, 1.0);
    case Kind::leaky_relu: return x < 0 ? alpha * x : x;
    case Kind::relu: return x < 0 ? 0 : x;
    case Kind::scaled_tanh: return alpha * std::tanh(beta * x);
    case Kind::sigmoid: return 1 / (1 + std::exp(-x));
    case Kind::softplus: return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    case Kind::softsign: return x / (1 + std::abs(x));
    case Kind::tanh: return std::tanh(x);
    case Kind::thresholded_relu: return x > alpha ? x : 0;
  }
  return x;
}

double Activation::other_slope(double y) const {
  switch (kind) {
    case Kind::affine: return alpha;
    case Kind::elu: return y < 0 ? y + alpha : 1;
    case Kind::hard_sigmoid: return y > 0 && y < 1 ? alpha : 0;
    case Kind::leaky_relu: return y < 0 ? alpha : 1;
    case Kind::relu: return y > 0 ? 1 : 0;
    case Kind::scaled_tanh: return beta * (alpha - y * y / alpha);
    case Kind::softplus: return -std::expm1(-y);
    case Kind::softsign: return (1 - std::abs(y)) * (1 - std::abs(y));
    case Kind::thresholded_relu: return y != 0 ? 1 : 0;
    case Kind::sigmoid:
    case Kind::tanh: break;
  }
  return 1;
}

void Activation::apply(double* v, int64_t n) const {
  for (int64_t i = 0; i < n; ++i) v[i] = at(v[i]);
}

void Activation::apply(float* v, int64_t n) const {
  const bool clipped = std::isfinite(clip);
  if (kind == Kind::sigmoid && !clipped) {
    HWY_DYNAMIC_DISPATCH(sigmoid_all)(v, static_cast<size_t>(n));
  } else if (kind == Kind::tanh && !clipped) {
    HWY_DYNAMIC_DISPATCH(tanh_all)(v, static_cast<size_t>(n));
  } else {
    for (int64_t i = 0; i < n; ++i) v[i] = static_cast<float>(at(static_cast<double>(v[i])));
  }
}

void gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const double* a, int64_t lda,
          const double* b, int64_t ldb, bool add, double* c, int64_t ldc) {
  parallel_for(m, grain_of(32768, n * k), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = add ? c[i * ldc + j] : 0;
        for (int64_t l = 0; l < k; ++l) {
          sum += (ta ? a[l * lda + i] : a[i * lda + l]) * (tb ? b[j * ldb + l] : b[l * ldb + j]);
        }
        c[i * ldc + j] = sum;
      }
    }
  });
}

}  // namespace steep::cpu
#endif  // HWY_ONCE
