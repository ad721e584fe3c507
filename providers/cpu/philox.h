// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011), the counter-based generator behind every random op. A number is a pure function of (seed,
// run, stream, element), so results depend neither on the number of threads nor on whether a node
// is computed once or again in backward.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace steep::cpu {

inline constexpr uint32_t kPhiloxM0 = 0xD2511F53, kPhiloxM1 = 0xCD9E8D57;
inline constexpr uint32_t kPhiloxW0 = 0x9E3779B9, kPhiloxW1 = 0xBB67AE85;

using PhiloxWords = std::array<uint32_t, 4>;

/// Ten rounds of Philox on `counter` under `key`.
constexpr PhiloxWords philox4x32(std::array<uint32_t, 2> key, PhiloxWords counter) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{kPhiloxM0} * counter[0];
    const uint64_t p1 = uint64_t{kPhiloxM1} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kPhiloxW0;
    key[1] += kPhiloxW1;
  }
  return counter;
}

/// The four words of elements 4*group … 4*group+3. `seed` is the graph's seed input, int64[2]
/// {seed, run}; the key is the seed's low and high half, the counter is (run, stream, low half of
/// group, high half of group), with run and stream modulo 2^32.
constexpr PhiloxWords philox_group(const int64_t* seed, int64_t stream, uint64_t group) {
  const auto key = static_cast<uint64_t>(seed[0]);
  return philox4x32({static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)},
                    {static_cast<uint32_t>(seed[1]), static_cast<uint32_t>(stream),
                     static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32)});
}

/// Dropout keeps an element iff its word, as the fraction u = word / 2^32, is at least `ratio`,
/// that is iff word >= keep_threshold(ratio). 2^32 (nothing is kept) for a ratio of 1.
inline uint64_t keep_threshold(double ratio) {
  return static_cast<uint64_t>(std::ceil(ratio * 4294967296.0));
}

}  // namespace steep::cpu
