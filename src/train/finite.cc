#include "train/finite.h"

#include <cmath>
#include <cstdint>
#include <limits>

namespace steep {
namespace {

/// `exponent` has the exponent bits set. They are all set in NaN and infinity, and in no other
/// value.
template <typename Bits>
bool finite_bits(const Tensor& tensor, Bits exponent) {
  const auto* x = static_cast<const Bits*>(tensor.data());
  int64_t bad = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) bad += (x[i] & exponent) == exponent;
  return bad == 0;
}

}  // namespace

double without_nan_sign(double number) {
  return std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number;
}

double scalar_of(const Tensor& tensor) {
  return without_nan_sign(tensor.dtype() == DType::f64 ? *tensor.data<double>()
                                                       : double{*tensor.data<float>()});
}

bool all_finite(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f16: return finite_bits<uint16_t>(tensor, 0x7C00);
    case DType::bf16: return finite_bits<uint16_t>(tensor, 0x7F80);
    case DType::f32: return finite_bits<uint32_t>(tensor, 0x7F800000);
    case DType::f64: return finite_bits<uint64_t>(tensor, 0x7FF0000000000000);
    default: return true;
  }
}

}  // namespace steep
