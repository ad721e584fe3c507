// Element types. The numbers are those of ONNX TensorProto.DataType, so that conversion is a cast.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace steep {

enum class DType : int32_t {
  undefined = 0,
  f32 = 1,
  u8 = 2,
  i8 = 3,
  u16 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  boolean = 9,
  f16 = 10,
  f64 = 11,
  u32 = 12,
  u64 = 13,
  bf16 = 16,
  f8e4m3fn = 17,
  f8e4m3fnuz = 18,
  f8e5m2 = 19,
  f8e5m2fnuz = 20,
  u4 = 21,
  i4 = 22,
  f4e2m1 = 23,
  f8e8m0 = 24,
  u2 = 25,
  i2 = 26,
  f6e2m3 = 27,
  f6e3m2 = 28,
};

/// Bytes per element in memory; 0 for `undefined` and for types that Steep does not hold. An
/// element narrower than a byte occupies a whole byte: its value is in the low bits, as in
/// ml_dtypes, and readers ignore the high bits.
size_t size_of(DType dtype);

/// Bits per element in a file, where narrow elements are packed (runtime/packing.h).
int bits_of(DType dtype);

/// "float32", "int64", … as NumPy spells them ("bfloat16" as ml_dtypes does).
std::string_view name_of(DType dtype);

/// True for the floats of 8 bits and less: quantised data, which only conversions read as numbers.
bool is_narrow_float(DType dtype);

/// True for i2 … u64 (bool excepted).
bool is_integer(DType dtype);

/// True for f16, bf16, f32, f64: the types through which gradients flow.
bool is_float(DType dtype);

/// C++ type → DType, e.g. dtype_of<float>() == DType::f32.
template <typename T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::f32;
}
template <>
constexpr DType dtype_of<double>() {
  return DType::f64;
}
template <>
constexpr DType dtype_of<int8_t>() {
  return DType::i8;
}
template <>
constexpr DType dtype_of<uint8_t>() {
  return DType::u8;
}
template <>
constexpr DType dtype_of<int16_t>() {
  return DType::i16;
}
template <>
constexpr DType dtype_of<uint16_t>() {
  return DType::u16;
}
template <>
constexpr DType dtype_of<int32_t>() {
  return DType::i32;
}
template <>
constexpr DType dtype_of<uint32_t>() {
  return DType::u32;
}
template <>
constexpr DType dtype_of<int64_t>() {
  return DType::i64;
}
template <>
constexpr DType dtype_of<uint64_t>() {
  return DType::u64;
}
template <>
constexpr DType dtype_of<bool>() {
  return DType::boolean;
}

}  // namespace steep
