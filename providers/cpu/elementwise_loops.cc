// The elementwise operations in float and double, one row per op. They define the results that
// elementwise_simd.cc must give.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "providers/cpu/elementwise.h"
#include "providers/cpu/philox.h"

namespace steep::cpu {
namespace {

template <typename T>
T softplus(T x) {
  return std::fmax(x, T{0}) + std::log1p(std::exp(-std::abs(x)));
}

template <typename T>
T sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return (x >= 0 ? T{1} : e) / (1 + e);
}

/// x to the power 0.5: √x, but ∞ at -∞ and 0 at -0.
template <typename T>
T root(T x) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  return std::sqrt((x == -kInfinity ? kInfinity : x) + T{0});
}

/// x * tanh(softplus(x)), with e = exp(x): tanh(log(1 + e)) = e(e + 2) / (e(e + 2) + 2).
template <typename T>
T mish(T x) {
  if (x > 40) return x;
  const T e = std::exp(x);
  return x * (e * (e + 2)) / (e * (e + 2) + 2);
}

/// Φ(x), the cumulative normal distribution.
template <typename T>
T cdf(T x) {
  return T{0.5} * std::erfc(x * T{-0.70710678118654752440});
}

/// The derivative of x Φ(x).
template <typename T>
T gelu_slope(T x) {
  return cdf(x) + x * T{0.39894228040143267794} * std::exp(T{-0.5} * x * x);
}

/// The derivative of x sigmoid(k (x + 0.044715 x³)).
template <typename T>
T gelu_tanh_slope(T x) {
  constexpr T k{1.5957691216057307117}, cubic{0.044715};
  const T s = sigmoid(k * (x + cubic * x * x * x));
  return s + x * s * (1 - s) * k * (1 + 3 * cubic * (x * x));
}

/// The remainder with the divisor's sign.
template <typename T>
T floor_mod(T a, T b) {
  const T r = std::fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

template <Code k, typename T>
// NOLINTNEXTLINE(readability-function-size): a table, one line for each code
inline T evaluate(T a, [[maybe_unused]] T b, [[maybe_unused]] T c,
                  [[maybe_unused]] const Params& p) {
  [[maybe_unused]] const T p0 = static_cast<T>(p.p0);
  [[maybe_unused]] const T p1 = static_cast<T>(p.p1);
  using enum Code;
  // clang-format off
  if constexpr (k == copy) return a;
  else if constexpr (k == add) return a + b;
  else if constexpr (k == sub) return a - b;
  else if constexpr (k == mul) return a * b;
  else if constexpr (k == div) return a / b;
  else if constexpr (k == Code::pow) return std::pow(a, b);
  else if constexpr (k == mod) return floor_mod(a, b);
  else if constexpr (k == Code::fmod) return std::fmod(a, b);
  else if constexpr (k == min) return a < b || a != a ? a : b;  // NaN wins
  else if constexpr (k == max) return a > b || a != a ? a : b;
  else if constexpr (k == neg) return -a;
  else if constexpr (k == Code::abs) return std::abs(a);
  else if constexpr (k == square) return a * a;
  else if constexpr (k == cube) return a * a * a;
  else if constexpr (k == scale) return a * p0;
  else if constexpr (k == Code::sqrt) return std::sqrt(a);
  else if constexpr (k == Code::root) return cpu::root(a);
  else if constexpr (k == Code::exp) return std::exp(a);
  else if constexpr (k == Code::log) return std::log(a);
  else if constexpr (k == Code::erf) return std::erf(a);
  else if constexpr (k == Code::sin) return std::sin(a);
  else if constexpr (k == Code::cos) return std::cos(a);
  else if constexpr (k == Code::tan) return std::tan(a);
  else if constexpr (k == Code::asin) return std::asin(a);
  else if constexpr (k == Code::acos) return std::acos(a);
  else if constexpr (k == Code::atan) return std::atan(a);
  else if constexpr (k == Code::sinh) return std::sinh(a);
  else if constexpr (k == Code::cosh) return std::cosh(a);
  else if constexpr (k == Code::tanh) return std::tanh(a);
  else if constexpr (k == Code::asinh) return std::asinh(a);
  else if constexpr (k == Code::acosh) return std::acosh(a);
  else if constexpr (k == Code::atanh) return std::atanh(a);
  else if constexpr (k == sign) return a != a ? a : static_cast<T>((a > 0) - (a < 0));
  else if constexpr (k == reciprocal) return 1 / a;
  else if constexpr (k == Code::floor) return std::floor(a);
  else if constexpr (k == Code::ceil) return std::ceil(a);
  else if constexpr (k == Code::round) return std::nearbyint(a);  // halves to even
  else if constexpr (k == Code::sigmoid) return cpu::sigmoid(a);
  else if constexpr (k == relu) return a < 0 ? T{0} : a;  // NaN stays
  else if constexpr (k == leaky_relu) return a < 0 ? a * p0 : a;
  else if constexpr (k == prelu) return a < 0 ? a * b : a;
  else if constexpr (k == elu) return a < 0 ? p0 * std::expm1(a) : a;
  else if constexpr (k == selu) return p1 * (a < 0 ? p0 * std::expm1(a) : a);
  else if constexpr (k == celu) return a < 0 ? p0 * std::expm1(a / p0) : a;
  else if constexpr (k == Code::softplus) return cpu::softplus(a);
  else if constexpr (k == softsign) return a / (1 + std::abs(a));
  else if constexpr (k == hard_sigmoid) return evaluate<max>(T{0}, evaluate<min>(T{1}, p0 * a + p1, c, p), c, p);
  else if constexpr (k == hard_swish)
    return a * evaluate<max>(T{0}, evaluate<min>(T{1}, a / 6 + T{0.5}, c, p), c, p);
  else if constexpr (k == thresholded_relu) return a <= p0 ? T{0} : a;
  else if constexpr (k == Code::mish) return cpu::mish(a);
  else if constexpr (k == gelu) return a * cdf(a);
  else if constexpr (k == gelu_grad) return a * gelu_slope(b);
  else if constexpr (k == gelu_tanh_grad) return a * gelu_tanh_slope(b);
  else if constexpr (k == gelu_tanh)  // 0.5 * (1 + tanh(u)) = sigmoid(2u)
    return a * cpu::sigmoid(T{1.5957691216057307117} * (a + T{0.044715} * a * a * a));
  else if constexpr (k == where) return a != 0 ? b : c;
  else if constexpr (k == equal) return static_cast<T>(a == b);
  else if constexpr (k == greater) return static_cast<T>(a > b);
  else if constexpr (k == greater_equal) return static_cast<T>(a >= b);
  else if constexpr (k == less) return static_cast<T>(a < b);
  else if constexpr (k == less_equal) return static_cast<T>(a <= b);
  else if constexpr (k == logic_and) return static_cast<T>(a != 0 && b != 0);
  else if constexpr (k == logic_or) return static_cast<T>(a != 0 || b != 0);
  else if constexpr (k == logic_xor) return static_cast<T>((a != 0) != (b != 0));
  else if constexpr (k == logic_not) return static_cast<T>(a == 0);
  else if constexpr (k == is_nan) return static_cast<T>(a != a);
  else if constexpr (k == is_inf) return static_cast<T>(std::isinf(a) && (a > 0 ? p0 : p1) != 0);
  else if constexpr (k == nonzero) return static_cast<T>(a != 0);
  else if constexpr (k == round_bf16) return bf16_to_float(float_to_bf16(static_cast<float>(a)));
  else if constexpr (k == round_f16) return f16_to_float(float_to_f16(static_cast<float>(a)));
  else if constexpr (k == round_f32) return static_cast<float>(a);
  else static_assert(k == count, "a code without a row");
  // clang-format on
}

constexpr bool has_row(Code k) {
  return !(k >= Code::bit_and && k <= Code::bit_not) && k != Code::wrap && k < Code::dropout;
}

template <Code k, typename T>
void loop(T* dst, const T* a, const T* b, const T* c, int64_t n, const Params& params) {
  const Params p = params;
  for (int64_t i = 0; i < n; ++i) dst[i] = evaluate<k>(a[i], b[i], c[i], p);
}

template <typename T, size_t... codes>
constexpr LoopTable<T> make_table(std::index_sequence<codes...>) {
  LoopTable<T> table{};
  auto set = [&]<Code k>(std::integral_constant<Code, k>) {
    if constexpr (has_row(k)) table[static_cast<size_t>(k)] = &loop<k, T>;
  };
  (set(std::integral_constant<Code, static_cast<Code>(codes)>{}), ...);
  return table;
}

}  // namespace

const LoopTable<float>& plain_float_loops() {
  static constexpr auto kTable = make_table<float>(std::make_index_sequence<kCodes>{});
  return kTable;
}

const LoopTable<double>& double_loops() {
  static constexpr auto kTable = make_table<double>(std::make_index_sequence<kCodes>{});
  return kTable;
}

void dropout(const DropoutParams& params, const int64_t* seed, int64_t first, const double* a,
             double* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += 4) {
    const PhiloxWords words =
        philox_group(seed, params.stream, static_cast<uint64_t>(first + i) / 4);
    for (int64_t lane = 0; lane < 4 && i + lane < n; ++lane) {
      const bool keep = words[static_cast<size_t>(lane)] >= params.threshold;
      // multiply by 0 where dropped, as PyTorch does: NaN stays NaN
      dst[i + lane] = a != nullptr ? a[i + lane] * (keep ? params.scale : 0) : keep ? 1 : 0;
    }
  }
}

}  // namespace steep::cpu
