#include "providers/cpu/convert.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "providers/cpu/narrow_float.h"
#include "steep/error.h"

namespace steep::cpu {

float f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits} >> 15 << 31;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 0xFF : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

uint16_t float_to_f16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 31 << 15;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00);  // NaN
  if (magnitude >= 0x477FF000)
    return static_cast<uint16_t>(sign | 0x7C00);  // rounds to 2^16 or more
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 aligns units of 2^-24 with the last bit
    const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3F000000));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1) - (112U << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

namespace {

/// The float next to x whose last bit is odd if x is inexact. Rounding it to a narrower type then
/// gives the same result as rounding the double.
float round_to_odd(double x) {
  const auto nearest = static_cast<float>(x);
  if (static_cast<double>(nearest) == x || std::isnan(x) || std::isinf(nearest)) return nearest;
  auto bits = std::bit_cast<uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1);
}

struct F16 {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};
/// An integer in the low bits of a byte.
template <int bits, bool is_signed>
struct Small {
  uint8_t byte;
  int8_t value() const {
    const auto high = static_cast<uint8_t>(byte << (8 - bits));
    if constexpr (is_signed) return static_cast<int8_t>(static_cast<int8_t>(high) >> (8 - bits));
    return static_cast<int8_t>(high >> (8 - bits));
  }
};
template <typename T>
inline constexpr bool is_small = false;
template <int bits, bool is_signed>
inline constexpr bool is_small<Small<bits, is_signed>> = true;
template <typename T>
inline constexpr uint8_t mask_of = 0;
template <int bits, bool is_signed>
inline constexpr uint8_t mask_of<Small<bits, is_signed>> = (1 << bits) - 1;

template <DType narrow>
struct Narrow {
  uint8_t bits;
};
template <typename T>
inline constexpr DType narrow_of = DType::undefined;
template <DType narrow>
inline constexpr DType narrow_of<Narrow<narrow>> = narrow;

template <typename T>
auto widen(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return bf16_to_float(x.bits);
  } else if constexpr (std::is_same_v<T, F16>) {
    return f16_to_float(x.bits);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<uint8_t>(x.byte != 0);
  } else if constexpr (is_small<T>) {
    return x.value();
  } else {
    return x;
  }
}

template <typename To, typename From>
To narrow(From x) {
  if constexpr (std::is_same_v<To, Bf16>) {
    if constexpr (std::is_same_v<From, double>) return {float_to_bf16(round_to_odd(x))};
    return {float_to_bf16(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<To, F16>) {
    if constexpr (std::is_same_v<From, double>) return {float_to_f16(round_to_odd(x))};
    return {float_to_f16(static_cast<float>(x))};
  } else if constexpr (is_small<To> && std::is_floating_point_v<From>) {
    return narrow<To>(narrow<int64_t>(x));
  } else if constexpr (is_small<To>) {
    return {static_cast<uint8_t>(static_cast<uint8_t>(x) & mask_of<To>)};
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {static_cast<uint8_t>(x != From{0})};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The largest To may round up to a From that is out of range for To.
    constexpr From kLow = static_cast<From>(std::numeric_limits<To>::min());
    constexpr From kHigh = static_cast<From>(std::numeric_limits<To>::max());
    if (std::isnan(x)) return 0;
    if (x <= kLow) return std::numeric_limits<To>::min();
    if (x >= kHigh) return std::numeric_limits<To>::max();
    return static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To>
void convert(const void* src, void* dst, int64_t n) {
  if constexpr (std::is_same_v<From, To>) {
    if (n > 0) std::memmove(dst, src, static_cast<size_t>(n) * sizeof(From));
  } else if constexpr (narrow_of<From> != DType::undefined) {
    const auto* x = static_cast<const From*>(src);
    auto* y = static_cast<To*>(dst);
    const float* values = narrow_values(narrow_of<From>);
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<To>(values[x[i].bits]);
  } else {
    const auto* x = static_cast<const From*>(src);
    auto* y = static_cast<To*>(dst);
    for (int64_t i = 0; i < n; ++i) y[i] = narrow<To>(widen(x[i]));
  }
}

template <typename F>
Convert with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::i8: return f(int8_t{});
    case DType::u8: return f(uint8_t{});
    case DType::i16: return f(int16_t{});
    case DType::u16: return f(uint16_t{});
    case DType::i32: return f(int32_t{});
    case DType::u32: return f(uint32_t{});
    case DType::i64: return f(int64_t{});
    case DType::u64: return f(uint64_t{});
    case DType::boolean: return f(Bool{});
    case DType::f16: return f(F16{});
    case DType::bf16: return f(Bf16{});
    case DType::u4: return f(Small<4, false>{});
    case DType::i4: return f(Small<4, true>{});
    case DType::u2: return f(Small<2, false>{});
    case DType::i2: return f(Small<2, true>{});
    default: break;
  }
  throw InternalError({.what = "A conversion to or from an unknown dtype was requested."});
}

}  // namespace

Convert find_convert(DType from, DType to) {
  if (is_narrow_float(from)) {
    const auto with = [to]<DType narrow>(std::integral_constant<DType, narrow>) {
      return with_type(to, []<typename To>(To) -> Convert { return &convert<Narrow<narrow>, To>; });
    };
    using enum DType;
    switch (from) {
      case f8e4m3fn: return with(std::integral_constant<DType, f8e4m3fn>{});
      case f8e4m3fnuz: return with(std::integral_constant<DType, f8e4m3fnuz>{});
      case f8e5m2: return with(std::integral_constant<DType, f8e5m2>{});
      case f8e5m2fnuz: return with(std::integral_constant<DType, f8e5m2fnuz>{});
      case f8e8m0: return with(std::integral_constant<DType, f8e8m0>{});
      case f6e2m3: return with(std::integral_constant<DType, f6e2m3>{});
      case f6e3m2: return with(std::integral_constant<DType, f6e3m2>{});
      default: return with(std::integral_constant<DType, f4e2m1>{});
    }
  }
  if (from == DType::f32 && to == DType::bf16) return bf16_narrowing();
  if (from == DType::bf16 && to == DType::f32) return bf16_widening();
  if (from == DType::f32 && to == DType::f16) return f16_narrowing();
  if (from == DType::f16 && to == DType::f32) return f16_widening();
  return with_type(from, [&]<typename From>(From) {
    return with_type(to, []<typename To>(To) -> Convert { return &convert<From, To>; });
  });
}

}  // namespace steep::cpu
