// Minimum and maximum of Highway vectors in which NaN wins, as in PyTorch and ONNX. Highway's own
// are the processor's: with a NaN, x86-64 gives the second operand, ARM the other number. Included
// once per target.
#include "hwy/highway.h"

#if defined(STEEP_EXTREMES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_EXTREMES_INL_H_
#undef STEEP_EXTREMES_INL_H_
#else
#define STEEP_EXTREMES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class V>
HWY_INLINE V min_nan(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Lt(a, b), hn::IsNaN(a)), a, b);
}
template <class V>
HWY_INLINE V max_nan(V a, V b) {
  return hn::IfThenElse(hn::Or(hn::Gt(a, b), hn::IsNaN(a)), a, b);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
