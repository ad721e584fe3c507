#include "data/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "steep/error.h"

namespace steep {
namespace {

/// 2 to the power of k; the result must be a normal double.
double power_of_two(int64_t k) {
  return std::bit_cast<double>(static_cast<uint64_t>(k + 1023) << 52);
}

/// A 16-bit float: a sign, an exponent and `Digits` bits of mantissa.
template <int Digits>
struct Narrow {
  static constexpr int64_t kBias = (1 << (14 - Digits)) - 1;
  static constexpr uint16_t kInfinity = 0x7fff >> Digits << Digits;
  uint16_t bits;

  double wide() const {
    const int64_t exponent = (bits & 0x7fff) >> Digits;
    const auto digits = static_cast<double>(bits & ((1 << Digits) - 1));
    double x = digits;
    if (exponent == kInfinity >> Digits) {
      x = digits == 0 ? std::numeric_limits<double>::infinity()
                      : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      x *= power_of_two(1 - kBias - Digits);
    } else {
      x = (digits + (1 << Digits)) * power_of_two(exponent - kBias - Digits);
    }
    return (bits & 0x8000) != 0 ? -x : x;
  }
  /// Rounds once, to nearest, ties to even.
  static Narrow of(double x) {
    const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
    if (std::isnan(x)) return {static_cast<uint16_t>(sign | kInfinity | 1 << (Digits - 1))};
    const double size = std::fabs(x);
    if (size >= power_of_two(kBias + 1)) return {static_cast<uint16_t>(sign | kInfinity)};
    // The exponent in the bits. For denormal results it stays at the least one.
    const auto exponent = static_cast<int64_t>(std::bit_cast<uint64_t>(size) >> 52) - 1023;
    const int64_t at = std::max(exponent, 1 - kBias);
    const auto digits = static_cast<int64_t>(std::nearbyint(size * power_of_two(Digits - at)));
    // A mantissa that rounds up to the next power of two carries into the exponent, which is
    // correct.
    return {static_cast<uint16_t>(sign | (((at + kBias - 1) << Digits) + digits))};
  }
};
using Half = Narrow<10>;
using Brain = Narrow<7>;

template <typename T>
constexpr bool kIsFloat = std::is_floating_point_v<T> || !std::is_arithmetic_v<T>;

/// Calls f with a null pointer to the C++ type of a dtype. False for types narrower than a byte and
/// for 8-bit floats.
template <typename F>
bool with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: f(static_cast<float*>(nullptr)); return true;
    case DType::f64: f(static_cast<double*>(nullptr)); return true;
    case DType::f16: f(static_cast<Half*>(nullptr)); return true;
    case DType::bf16: f(static_cast<Brain*>(nullptr)); return true;
    case DType::i8: f(static_cast<int8_t*>(nullptr)); return true;
    case DType::i16: f(static_cast<int16_t*>(nullptr)); return true;
    case DType::i32: f(static_cast<int32_t*>(nullptr)); return true;
    case DType::i64: f(static_cast<int64_t*>(nullptr)); return true;
    case DType::u8: f(static_cast<uint8_t*>(nullptr)); return true;
    case DType::u16: f(static_cast<uint16_t*>(nullptr)); return true;
    case DType::u32: f(static_cast<uint32_t*>(nullptr)); return true;
    case DType::u64: f(static_cast<uint64_t*>(nullptr)); return true;
    case DType::boolean: f(static_cast<bool*>(nullptr)); return true;
    default: return false;
  }
}

[[noreturn]] void refuse_conversion(const Tensor& tensor, DType dtype, const std::string& name,
                                    const std::string& received) {
  throw DataError(
      ErrorParts{.what = "An array does not suit the model's input.",
                 .node = name,
                 .expected = std::string(name_of(dtype)),
                 .received = received.empty() ? std::string(name_of(tensor.dtype())) : received,
                 .remedy = "Convert the array."});
}

template <typename T>
auto number_of(T x) {
  if constexpr (std::is_arithmetic_v<T>) {
    return x;
  } else {
    return x.wide();
  }
}

template <typename To, typename T>
To make(T x) {
  if constexpr (std::is_arithmetic_v<To>) {
    return static_cast<To>(x);
  } else {
    return To::of(static_cast<double>(x));
  }
}

template <typename From, typename To>
void convert_all(const Tensor& from, Tensor& to, const std::string& name) {
  const auto* in = static_cast<const From*>(from.data());
  auto* out = static_cast<To*>(to.data());
  for (int64_t i = 0; i < from.size(); ++i) {
    const auto x = number_of(in[i]);
    out[i] = make<To>(x);
    bool fits = true;
    if constexpr (std::is_same_v<To, bool>) {
      fits = x == 0 || x == 1;
    } else if constexpr (std::is_integral_v<To>) {
      fits = std::in_range<To>(
          static_cast<std::conditional_t<std::is_same_v<From, bool>, uint8_t, From>>(x));
    } else {
      fits = std::isfinite(number_of(out[i])) || !std::isfinite(static_cast<double>(x));
    }
    if (!fits) {
      refuse_conversion(from, to.dtype(), name, fmt::format("{} at element {}", x, i));
    }
  }
}

}  // namespace

bool converts(DType from, DType to) {
  const auto known = [](DType type) { return with_type(type, [](auto*) {}); };
  return known(from) && known(to) && (is_float(to) || !is_float(from));
}

Tensor convert(const Tensor& tensor, DType dtype, const std::string& name) {
  if (tensor.dtype() == dtype) return tensor;
  if (!converts(tensor.dtype(), dtype)) refuse_conversion(tensor, dtype, name, "");
  Tensor out = Tensor::empty(dtype, tensor.dims());
  with_type(tensor.dtype(), [&]<typename From>(From*) {
    with_type(dtype, [&]<typename To>(To*) {
      if constexpr (!kIsFloat<From> || kIsFloat<To>) {
        convert_all<From, To>(tensor, out, name);
      }
    });
  });
  return out;
}

}  // namespace steep
