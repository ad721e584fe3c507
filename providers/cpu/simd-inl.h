// Loads and stores of partial vectors, and of bfloat16 as float, for Highway kernels. Included once
// per target.
#include "hwy/highway.h"
#include "providers/cpu/convert.h"

#if defined(STEEP_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_SIMD_INL_H_
#undef STEEP_SIMD_INL_H_
#else
#define STEEP_SIMD_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Whether masked loads and stores of T touch nothing but the lanes of the mask: also those of AVX2
/// for 4 and 8 bytes, for which HWY_MEM_OPS_MIGHT_FAULT is set because of smaller types.
template <typename T>
inline constexpr bool kHasMasks =
    HWY_MEM_OPS_MIGHT_FAULT == 0 || (HWY_TARGET == HWY_AVX2 && sizeof(T) >= 4);

/// Loads the first `count` lanes from `p`; the others are zero. Reads nothing past p + count.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_n(D d, const T* HWY_RESTRICT p, size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT  // masks cost more than whole vectors
  if (count >= hn::Lanes(d)) return hn::LoadU(d, p);
#endif
  if constexpr (kHasMasks<T>) {
    return hn::MaskedLoad(hn::FirstN(d, count), d, p);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(d)] = {};
    for (size_t i = 0; i < count; ++i) lanes[i] = p[i];
    return hn::Load(d, lanes);
  }
}

/// Writes the first `count` lanes.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void store_n(hn::Vec<D> v, D d, T* HWY_RESTRICT p, size_t count) {
#if HWY_MEM_OPS_MIGHT_FAULT
  if (count >= hn::Lanes(d)) return hn::StoreU(v, d, p);
#endif
  if constexpr (kHasMasks<T>) {
    hn::BlendedStore(v, hn::FirstN(d, count), d, p);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(d)];
    hn::Store(v, d, lanes);
    for (size_t i = 0; i < count; ++i) p[i] = lanes[i];
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, float* p) {
  hn::StoreU(v, d, p);
}

template <class D, class V16>
HWY_INLINE hn::Vec<D> widened(D d, V16 bits) {
  const hn::RebindToUnsigned<D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

/// Rounds to nearest even; NaN stays NaN.
template <class D>
HWY_INLINE auto narrowed(D, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> d32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v);
  const auto even = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1));
  const auto rounded = hn::Add(bits, hn::Add(even, hn::Set(d32, 0x7FFF)));
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  const auto quiet = hn::Or(bits, hn::Set(d32, 0x400000));
  return hn::TruncateTo(d16, hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded)));
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  return widened(d, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
}
template <class D>
HWY_INLINE hn::Vec<D> load_n(D d, const Bf16* p, size_t count) {
  const hn::Rebind<uint16_t, D> d16;
  return widened(d, load_n(d16, reinterpret_cast<const uint16_t*>(p), count));
}
template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, Bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(narrowed(d, v), d16, reinterpret_cast<uint16_t*>(p));
}
template <class D>
HWY_INLINE void store_n(hn::Vec<D> v, D d, Bf16* p, size_t count) {
  const hn::Rebind<uint16_t, D> d16;
  store_n(narrowed(d, v), d16, reinterpret_cast<uint16_t*>(p), count);
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
