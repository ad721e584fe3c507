#include "steep/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/address_space.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {

size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::boolean:
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0:
    case DType::f6e2m3:
    case DType::f6e3m2:
    case DType::f4e2m1:
    case DType::u4:
    case DType::i4:
    case DType::u2:
    case DType::i2: return 1;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16: return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64: return 8;
    case DType::undefined: break;
  }
  return 0;
}

int bits_of(DType dtype) {
  switch (dtype) {
    case DType::u2:
    case DType::i2: return 2;
    case DType::u4:
    case DType::i4:
    case DType::f4e2m1: return 4;
    case DType::f6e2m3:
    case DType::f6e3m2: return 6;
    default: return static_cast<int>(size_of(dtype)) * 8;
  }
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::u8: return "uint8";
    case DType::i8: return "int8";
    case DType::u16: return "uint16";
    case DType::i16: return "int16";
    case DType::i32: return "int32";
    case DType::i64: return "int64";
    case DType::boolean: return "bool";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
    case DType::u32: return "uint32";
    case DType::u64: return "uint64";
    case DType::bf16: return "bfloat16";
    case DType::f8e4m3fn: return "float8_e4m3fn";
    case DType::f8e4m3fnuz: return "float8_e4m3fnuz";
    case DType::f8e5m2: return "float8_e5m2";
    case DType::f8e5m2fnuz: return "float8_e5m2fnuz";
    case DType::f8e8m0: return "float8_e8m0fnu";
    case DType::f6e2m3: return "float6_e2m3fn";
    case DType::f6e3m2: return "float6_e3m2fn";
    case DType::f4e2m1: return "float4_e2m1fn";
    case DType::u4: return "uint4";
    case DType::i4: return "int4";
    case DType::u2: return "uint2";
    case DType::i2: return "int2";
    case DType::undefined: break;
  }
  return "undefined";
}

bool is_narrow_float(DType dtype) {
  switch (dtype) {
    case DType::f8e4m3fn:
    case DType::f8e4m3fnuz:
    case DType::f8e5m2:
    case DType::f8e5m2fnuz:
    case DType::f8e8m0:
    case DType::f6e2m3:
    case DType::f6e3m2:
    case DType::f4e2m1: return true;
    default: return false;
  }
}

bool is_integer(DType dtype) {
  return dtype != DType::undefined && dtype != DType::boolean && !is_float(dtype) &&
         !is_narrow_float(dtype);
}

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

int64_t element_count(const Dims& dims) {
  int64_t n = 1;
  bool empty = false;
  for (int64_t d : dims) {
    if (d < 0) {
      throw ShapeError({.what = "A tensor has a negative extent.",
                        .expected = "extents of at least 0",
                        .received = to_string(dims)});
    }
    if (d == 0) empty = true;
    if (d != 0 && __builtin_mul_overflow(n, d, &n)) {
      throw ShapeError({.what = "The number of elements of a tensor overflows 64 bits.",
                        .expected = "a product of extents below 2^63",
                        .received = to_string(dims)});
    }
  }
  return empty ? 0 : n;
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

void throw_count_mismatch(const Dims& dims, size_t received) {
  throw ShapeError(
      {.what = "The number of values does not match the shape.",
       .expected = fmt::format("{} for {}", counted(element_count(dims), "value"), to_string(dims)),
       .received = counted(received, "value")});
}

Tensor Tensor::wrap(DType dtype, Dims dims, void* data, std::shared_ptr<void> owner) {
  Tensor t;
  t.dtype_ = dtype;
  t.size_ = element_count(dims);
  int64_t bytes = 0;
  if (__builtin_mul_overflow(t.size_, static_cast<int64_t>(size_of(dtype)), &bytes)) {
    throw ShapeError({.what = "The size of a tensor in bytes overflows 64 bits.",
                      .received = fmt::format("{} of {}", to_string(dims), name_of(dtype))});
  }
  if (kNarrowAddresses && static_cast<uint64_t>(bytes) > kMostTensorBytes) {
    throw OutOfMemoryError(
        {.what = "A tensor is too large for this processor's addresses of 32 bits.",
         .expected = fmt::format("at most {} bytes", kMostTensorBytes),
         .received =
             fmt::format("{} of {}: {}", to_string(dims), name_of(dtype), counted(bytes, "byte")),
         .remedy = "Use smaller shapes, or a processor with addresses of 64 bits."});
  }
  t.dims_ = std::move(dims);
  t.data_ = data;
  t.owner_ = std::move(owner);
  return t;
}

Tensor Tensor::empty(DType dtype, Dims dims) {
  Tensor t = wrap(dtype, std::move(dims), nullptr, nullptr);
  if (t.nbytes() > current_limits().max_bytes)
    require_bytes(t.nbytes(), fmt::format("{}{}", name_of(dtype), to_string(t.dims_)));
  const size_t bytes = std::max<size_t>((t.nbytes() + 63) / 64 * 64, 64);
  void* p = allocation_allowed(bytes) ? std::aligned_alloc(64, bytes) : nullptr;
  if (p == nullptr) {
    throw OutOfMemoryError({.what = "Memory for a tensor could not be allocated.",
                            .received = fmt::format("{} of {}: {}", to_string(t.dims_),
                                                    name_of(dtype), counted(t.nbytes(), "byte"))});
  }
  t.owner_ = std::shared_ptr<void>(p, std::free);
  t.data_ = p;
  return t;
}

Tensor Tensor::zeros(DType dtype, Dims dims) {
  Tensor t = empty(dtype, std::move(dims));
  std::memset(t.data_, 0, t.nbytes());
  return t;
}

Tensor Tensor::clone() const {
  Tensor t = empty(dtype_, dims_);
  if (t.nbytes() != 0) std::memcpy(t.data_, data_, t.nbytes());
  return t;
}

Tensor Tensor::reshaped(Dims dims) const {
  Tensor t = wrap(dtype_, std::move(dims), data_, owner_);
  if (t.size() != size_) throw_count_mismatch(t.dims(), static_cast<size_t>(size_));
  return t;
}

std::vector<int64_t> Tensor::to_ints() const {
  std::vector<int64_t> out(static_cast<size_t>(size_));
  auto copy = [&]<typename T>(const T* p) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<int64_t>(p[i]);
  };
  switch (dtype_) {
    case DType::i64: copy(static_cast<const int64_t*>(data_)); break;
    case DType::u64: copy(static_cast<const uint64_t*>(data_)); break;
    case DType::i32: copy(static_cast<const int32_t*>(data_)); break;
    case DType::u32: copy(static_cast<const uint32_t*>(data_)); break;
    case DType::i16: copy(static_cast<const int16_t*>(data_)); break;
    case DType::u16: copy(static_cast<const uint16_t*>(data_)); break;
    case DType::i8: copy(static_cast<const int8_t*>(data_)); break;
    case DType::u8:
    case DType::boolean: copy(static_cast<const uint8_t*>(data_)); break;
    case DType::u4:
    case DType::i4:
    case DType::u2:
    case DType::i2: {
      const int unused = 8 - bits_of(dtype_);
      const bool negative = dtype_ == DType::i4 || dtype_ == DType::i2;
      const auto* p = static_cast<const uint8_t*>(data_);
      for (size_t i = 0; i < out.size(); ++i) {
        const auto high = static_cast<uint8_t>(p[i] << unused);
        out[i] = (negative ? static_cast<int8_t>(high) : high) >> unused;
      }
      break;
    }
    default:
      throw InternalError(
          {.what = "A tensor was read as integers.", .received = std::string(name_of(dtype_))});
  }
  return out;
}

void Tensor::require(DType wanted) const {
  if (wanted == dtype_ || (wanted == DType::u8 && dtype_ == DType::boolean)) return;
  // The bits of f16 and bf16 are read as u16.
  if (wanted == DType::u16 && (dtype_ == DType::f16 || dtype_ == DType::bf16)) return;
  throw InternalError({.what = "A tensor was read as another dtype than it holds.",
                       .expected = std::string(name_of(dtype_)),
                       .received = std::string(name_of(wanted))});
}

}  // namespace steep
