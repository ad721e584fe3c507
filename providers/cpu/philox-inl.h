// Philox words of many elements at a time, for Highway kernels. Included once per target.
#include "hwy/highway.h"
#include "providers/cpu/philox.h"

#if defined(STEEP_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef STEEP_PHILOX_INL_H_
#undef STEEP_PHILOX_INL_H_
#else
#define STEEP_PHILOX_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace steep::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Draws the words of consecutive groups, kGroups of them at a time.
class Philox {
 public:
  using D = hn::ScalableTag<uint64_t>;
  static constexpr int64_t kGroups = HWY_TARGET == HWY_SCALAR ? 1 : hn::MaxLanes(D());
  /// Number of blocks of kGroups whose multiplications overlap: as many as fit into the registers.
  static constexpr size_t kBlocks = HWY_MAX_BYTES == 64 ? 4 : 2;

  Philox(const int64_t* seed, int64_t stream)
      : seed_{seed[0], seed[1]}, stream_(stream), run_(static_cast<uint32_t>(seed[1])) {
    auto k0 = static_cast<uint32_t>(seed[0]);
    auto k1 = static_cast<uint32_t>(static_cast<uint64_t>(seed[0]) >> 32);
    for (auto& key : keys_) {
      key[0] = k0;
      key[1] = k1;
      k0 += kPhiloxW0;
      k1 += kPhiloxW1;
    }
  }

  /// For kBlocks blocks: writes 4 * kGroups words, from groups[b] on, to words[b].
  HWY_INLINE void draw(const uint64_t* groups, uint32_t* const* words) const {
#if HWY_TARGET == HWY_SCALAR
    for (size_t b = 0; b < kBlocks; ++b) {
      const PhiloxWords four = philox_group(seed_, stream_, groups[b]);
      std::copy(four.begin(), four.end(), words[b]);
    }
#else
    const D d;
    const hn::Repartition<uint32_t, D> d32;
    const auto m0 = hn::Set(d32, kPhiloxM0);
    const auto m1 = hn::Set(d32, kPhiloxM1);
    // A 64-bit lane holds one 32-bit word in its lower half. Multiplying even 32-bit lanes ignores
    // the upper halves, so they need not be cleared.
    using V = hn::Vec<D>;
    V c0[kBlocks], c1[kBlocks], c2[kBlocks], c3[kBlocks];
    const auto lane = hn::Iota(d, 0);
    HWY_UNROLL(4)
    for (size_t b = 0; b < kBlocks; ++b) {
      c0[b] = hn::Set(d, run_);
      c1[b] = hn::Set(d, static_cast<uint32_t>(stream_));
      c2[b] = hn::Add(lane, hn::Set(d, groups[b]));
      c3[b] = hn::ShiftRight<32>(c2[b]);
    }
    for (const auto& key : keys_) {
      const V k0 = hn::Set(d, key[0]);
      const V k1 = hn::Set(d, key[1]);
      HWY_UNROLL(4)
      for (size_t b = 0; b < kBlocks; ++b) {
        const V product0 = hn::MulEven(hn::BitCast(d32, c0[b]), m0);
        const V product1 = hn::MulEven(hn::BitCast(d32, c2[b]), m1);
        c0[b] = hn::Xor(hn::ShiftRight<32>(product1), hn::Xor(c1[b], k0));
        c1[b] = product1;
        c2[b] = hn::Xor(hn::ShiftRight<32>(product0), hn::Xor(c3[b], k1));
        c3[b] = product0;
      }
    }
    const V low_half = hn::Set(d, 0xFFFFFFFF);
    HWY_UNROLL(4)
    for (size_t b = 0; b < kBlocks; ++b) {
      const V first = hn::Or(hn::And(c0[b], low_half), hn::ShiftLeft<32>(c1[b]));
      const V second = hn::Or(hn::And(c2[b], low_half), hn::ShiftLeft<32>(c3[b]));
      hn::StoreInterleaved2(first, second, d, reinterpret_cast<uint64_t*>(words[b]));
    }
#endif
  }

 private:
  [[maybe_unused]] int64_t seed_[2];  // read only by the scalar form
  int64_t stream_;
  uint32_t run_;
  uint32_t keys_[10][2];
};

/// Extra words that philox_words may write past the end.
constexpr int64_t kPhiloxSlack = 4 * Philox::kGroups * static_cast<int64_t>(Philox::kBlocks);

/// Writes the words of `groups` groups from `group` on, four per group.
HWY_INLINE void philox_words(const Philox& philox, uint64_t group, int64_t groups,
                             uint32_t* HWY_RESTRICT words) {
  for (int64_t i = 0; i < groups;) {
    uint64_t from[Philox::kBlocks];
    uint32_t* to[Philox::kBlocks];
    for (size_t b = 0; b < Philox::kBlocks; ++b, i += Philox::kGroups) {
      from[b] = group + static_cast<uint64_t>(i);
      to[b] = words + 4 * i;
    }
    philox.draw(from, to);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace steep::cpu
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
