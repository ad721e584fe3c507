// The geometry of convolutions and poolings: windows of `kernel` taps, `dilation` apart, that move
// over the spatial axes of [batch, channel, spatial...] in steps of `stride`.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "ir/attr.h"
#include "steep/tensor.h"

namespace steep::cpu {

/// One spatial axis.
struct WindowAxis {
  int64_t in = 1;
  int64_t out = 1;
  int64_t kernel = 1;
  int64_t stride = 1;
  int64_t dilation = 1;
  int64_t pad_begin = 0;
  int64_t pad_end = 0;

  /// The extent of a window: from its first tap to one past its last.
  int64_t reach() const { return (kernel - 1) * dilation + 1; }
  /// The position of tap k of window o; may be outside [0, in).
  int64_t at(int64_t o, int64_t k) const { return o * stride - pad_begin + k * dilation; }
  /// The windows [first, last) whose tap k is inside.
  std::pair<int64_t, int64_t> windows_inside(int64_t k) const;
  /// The taps [first, last) of window o that are inside.
  std::pair<int64_t, int64_t> taps_inside(int64_t o) const;
  /// The number of taps of window o before the end of the padding.
  int64_t taps_before_end(int64_t o) const;
};

/// The spatial axes of a convolution or pooling from `in` to `out` (both [batch, channel,
/// spatial...]) with ONNX's attributes strides, dilations, pads and auto_pad. std::nullopt, and the
/// reason in *why_not, if they do not fit together.
std::optional<std::vector<WindowAxis>> read_window(const Attrs& attrs, const Dims& in,
                                                   const Dims& out, const Dims& kernel,
                                                   std::string* why_not);

/// Up to three axes as depth, height and width; missing axes have extent 1.
std::array<WindowAxis, 3> as_volume(const std::vector<WindowAxis>& axes);

}  // namespace steep::cpu
