#include "providers/cpu/convert.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

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

struct F16 {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};

template <typename T>
auto widen(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return bf16_to_float(x.bits);
  } else if constexpr (std::is_same_v<T, F16>) {
    return f16_to_float(x.bits);
  } else if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<uint8_t>(x.byte != 0);
  } else {
    return x;
  }
}

template <typename To, typename From>
To narrow(From x) {
  if constexpr (std::is_same_v<To, Bf16>) {
    return {float_to_bf16(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<To, F16>) {
    return {float_to_f16(static_cast<float>(x))};
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {static_cast<uint8_t>(x != From{0})};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // The largest To may round up to a From that To cannot hold.
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
    case DType::undefined: break;
  }
  throw InternalError({.what = "A conversion of an undefined dtype was asked for."});
}

}  // namespace

Convert find_convert(DType from, DType to) {
  if (from == DType::f32 && to == DType::bf16) return bf16_narrowing();
  if (from == DType::bf16 && to == DType::f32) return bf16_widening();
  if (from == DType::f32 && to == DType::f16) return f16_narrowing();
  if (from == DType::f16 && to == DType::f32) return f16_widening();
  return with_type(from, [&]<typename From>(From) {
    return with_type(to, []<typename To>(To) -> Convert { return &convert<From, To>; });
  });
}

}  // namespace steep::cpu
