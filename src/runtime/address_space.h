// How much of memory offsets and sizes can name: all of it where size_t has 64 bits, and less where
// it has 32 (WebAssembly).
#pragma once

#include <cstddef>
#include <cstdint>

namespace steep {

constexpr bool kNarrowAddresses = sizeof(size_t) < 8;

/// No tensor is larger. With 64 bits: what a process can address. With 32 bits it is much less than
/// that, so that a kernel's scratch, which pads or widens a few tensors, still has a size_t.
constexpr uint64_t kMostTensorBytes = uint64_t{1} << (kNarrowAddresses ? 27 : 47);

/// No arena ends behind this: with 32 bits, the sum of two buffers within it does not wrap.
constexpr uint64_t kMostArenaBytes = uint64_t{1} << (kNarrowAddresses ? 31 : 62);

/// Adds sizes without wrapping: SIZE_MAX stands for all that is more.
constexpr size_t saturated_sum(size_t a, size_t b) {
  size_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? SIZE_MAX : sum;
}

}  // namespace steep
