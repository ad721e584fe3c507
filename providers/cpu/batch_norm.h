// What the loops of batch_norm.cc, compiled once for each instruction set, get from its kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace steep::cpu {

/// What follows the normalisation: see ops/defs/batch_norm.h.
enum class Curve : uint8_t { none, relu, clip, hardtanh };

/// The elements of one channel: `count` planes of `size` elements, one in `stride`.
struct Planes {
  size_t count, size, stride;
};

/// y = (x - mean) factor + bias for one channel, and the activation of y.
template <typename T>
struct NormalizedChannel {
  T mean, factor, bias;
  Curve curve;
  T low, high;
};

}  // namespace steep::cpu
