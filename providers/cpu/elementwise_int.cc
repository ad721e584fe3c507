// Elementwise operations on integers and bools, computed in 64 bits. Sums, products and negations
// wrap; stores and Code::wrap truncate the result to its dtype.
#include <string>
#include <utility>

#include "providers/cpu/elementwise.h"

namespace steep::cpu {
namespace {

int64_t wrapping(uint64_t x) { return static_cast<int64_t>(x); }
uint64_t bits(int64_t x) { return static_cast<uint64_t>(x); }

template <typename T>
[[noreturn]] void fault(T a, T b) {
  throw IntegerFault{std::to_string(a), std::to_string(b)};
}

int64_t divide(int64_t a, int64_t b, int64_t smallest) {
  if (b == 0 || (b == -1 && a == smallest && a < 0)) fault(a, b);
  return a / b;
}

/// `floored`: the remainder has the divisor's sign; otherwise the dividend's.
int64_t remainder(int64_t a, int64_t b, bool floored) {
  if (b == 0) fault(a, b);
  if (b == -1) return 0;
  const int64_t r = a % b;
  return floored && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

uint64_t unsigned_power(uint64_t a, uint64_t b) {
  uint64_t result = 1;
  for (uint64_t base = a; b != 0; b >>= 1, base *= base) {
    if ((b & 1) != 0) result *= base;
  }
  return result;
}

/// Wraps on overflow; 1/a^|b| truncated for negative exponents.
int64_t power(int64_t a, int64_t b) {
  if (b < 0) {
    if (a == 0) fault<int64_t>(1, 0);
    if (a == 1) return 1;
    if (a == -1) return b % 2 == 0 ? 1 : -1;
    return 0;
  }
  return wrapping(unsigned_power(bits(a), bits(b)));
}

/// Bits that are shifted out are lost. A shift by more than 63 places, or by a negative number,
/// shifts out all bits.
int64_t shift_left(int64_t a, int64_t b) { return b < 0 || b > 63 ? 0 : wrapping(bits(a) << b); }
int64_t shift_right(int64_t a, int64_t b) { return a >> (b < 0 || b > 63 ? 63 : b); }

int64_t wrap(int64_t x, DType dtype) {
  switch (dtype) {
    case DType::i8: return static_cast<int8_t>(x);
    case DType::i16: return static_cast<int16_t>(x);
    case DType::i32: return static_cast<int32_t>(x);
    case DType::u8: return static_cast<uint8_t>(x);
    case DType::u16: return static_cast<uint16_t>(x);
    case DType::u32: return static_cast<uint32_t>(x);
    default: return x;
  }
}

/// Void for codes without an integer form. `scale` has none, because floor(sum / count) would not
/// be ONNX's Mean, which supports only floats.
template <Code k>
// NOLINTNEXTLINE(readability-function-size): a table, one line for each code
inline auto evaluate(int64_t a, [[maybe_unused]] int64_t b, [[maybe_unused]] int64_t c,
                     [[maybe_unused]] const Params& p) {
  using enum Code;
  // clang-format off
  if constexpr (k == copy) return a;
  else if constexpr (k == add) return wrapping(bits(a) + bits(b));
  else if constexpr (k == sub) return wrapping(bits(a) - bits(b));
  else if constexpr (k == mul) return wrapping(bits(a) * bits(b));
  else if constexpr (k == div) return divide(a, b, static_cast<int64_t>(p.p0));
  else if constexpr (k == pow) return power(a, b);
  else if constexpr (k == mod) return remainder(a, b, true);
  else if constexpr (k == Code::fmod) return remainder(a, b, false);
  else if constexpr (k == min) return a < b ? a : b;
  else if constexpr (k == max) return a > b ? a : b;
  else if constexpr (k == neg) return wrapping(0 - bits(a));
  else if constexpr (k == abs) return a < 0 ? wrapping(0 - bits(a)) : a;
  else if constexpr (k == sign) return (a > 0) - (a < 0);
  else if constexpr (k == relu) return a < 0 ? 0 : a;
  else if constexpr (k == prelu) return a < 0 ? wrapping(bits(a) * bits(b)) : a;
  else if constexpr (k == where) return a != 0 ? b : c;
  else if constexpr (k == equal) return a == b;
  else if constexpr (k == greater) return a > b;
  else if constexpr (k == greater_equal) return a >= b;
  else if constexpr (k == less) return a < b;
  else if constexpr (k == less_equal) return a <= b;
  else if constexpr (k == logic_and) return a != 0 && b != 0;
  else if constexpr (k == logic_or) return a != 0 || b != 0;
  else if constexpr (k == logic_xor) return (a != 0) != (b != 0);
  else if constexpr (k == logic_not) return a == 0;
  else if constexpr (k == nonzero) return a != 0;
  else if constexpr (k == bit_and) return a & b;
  else if constexpr (k == bit_or) return a | b;
  else if constexpr (k == bit_xor) return a ^ b;
  else if constexpr (k == bit_shift_left) return shift_left(a, b);
  else if constexpr (k == bit_shift_right) return shift_right(a, b);
  else if constexpr (k == bit_not) return ~a;
  else if constexpr (k == Code::wrap) return cpu::wrap(a, p.dtype);
  // clang-format on
}

/// For uint64: the codes in which the highest bit is not a sign. Other codes give the same bits.
template <Code k>
inline uint64_t evaluate_unsigned(uint64_t a, uint64_t b, uint64_t c, const Params& p) {
  using enum Code;
  if constexpr (k == div || k == mod || k == Code::fmod) {
    if (b == 0) fault(a, b);
    return k == div ? a / b : a % b;
  } else if constexpr (k == pow) {
    return unsigned_power(a, b);
  } else if constexpr (k == min) {
    return a < b ? a : b;
  } else if constexpr (k == max) {
    return a > b ? a : b;
  } else if constexpr (k == abs || k == relu || k == prelu) {
    return a;
  } else if constexpr (k == sign) {
    return a != 0;
  } else if constexpr (k == greater) {
    return a > b;
  } else if constexpr (k == greater_equal) {
    return a >= b;
  } else if constexpr (k == less) {
    return a < b;
  } else if constexpr (k == less_equal) {
    return a <= b;
  } else if constexpr (k == bit_shift_left) {
    return b > 63 ? 0 : a << b;
  } else if constexpr (k == bit_shift_right) {
    return b > 63 ? 0 : a >> b;
  } else {
    return bits(evaluate<k>(wrapping(a), wrapping(b), wrapping(c), p));
  }
}

template <Code k>
constexpr bool kHasRow =
    !std::is_void_v<decltype(evaluate<k>(int64_t{}, int64_t{}, int64_t{}, Params()))>;

template <Code k, typename T>
void loop(T* dst, const T* a, const T* b, const T* c, int64_t n, const Params& params) {
  const Params p = params;
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, uint64_t>) {
      dst[i] = evaluate_unsigned<k>(a[i], b[i], c[i], p);
    } else {
      dst[i] = evaluate<k>(a[i], b[i], c[i], p);
    }
  }
}

template <typename T, size_t... codes>
constexpr LoopTable<T> make_table(std::index_sequence<codes...>) {
  LoopTable<T> table{};
  auto set = [&]<Code k>(std::integral_constant<Code, k>) {
    if constexpr (kHasRow<k>) table[static_cast<size_t>(k)] = &loop<k, T>;
  };
  (set(std::integral_constant<Code, static_cast<Code>(codes)>{}), ...);
  return table;
}

}  // namespace

const LoopTable<int64_t>& int_loops() {
  static constexpr auto kTable = make_table<int64_t>(std::make_index_sequence<kCodes>{});
  return kTable;
}

const LoopTable<uint64_t>& uint_loops() {
  static constexpr auto kTable = make_table<uint64_t>(std::make_index_sequence<kCodes>{});
  return kTable;
}

}  // namespace steep::cpu
