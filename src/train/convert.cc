#include "train/convert.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

#include "steep/error.h"

namespace steep {
namespace {

/// Calls f with a null pointer of the C++ type of a numeric dtype; false for the 16-bit floats.
template <typename F>
bool with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: f(static_cast<float*>(nullptr)); return true;
    case DType::f64: f(static_cast<double*>(nullptr)); return true;
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
      ErrorParts{.what = "an array does not suit the model's input",
                 .node = name,
                 .expected = std::string(name_of(dtype)),
                 .received = received.empty() ? std::string(name_of(tensor.dtype())) : received,
                 .remedy = "convert the array"});
}

template <typename From, typename To>
void convert_all(const Tensor& from, Tensor& to, const std::string& name) {
  const auto* in = static_cast<const From*>(from.data());
  auto* out = static_cast<To*>(to.data());
  for (int64_t i = 0; i < from.size(); ++i) {
    if constexpr (std::is_integral_v<To>) {
      if (!std::in_range<std::conditional_t<std::is_same_v<To, bool>, uint8_t, To>>(
              static_cast<std::conditional_t<std::is_same_v<From, bool>, uint8_t, From>>(in[i]))) {
        refuse_conversion(from, to.dtype(), name, fmt::format("{} at element {}", in[i], i));
      }
    }
    out[i] = static_cast<To>(in[i]);
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
      if constexpr (!std::is_floating_point_v<From> || std::is_floating_point_v<To>) {
        convert_all<From, To>(tensor, out, name);
      }
    });
  });
  return out;
}

}  // namespace steep
