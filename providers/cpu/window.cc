#include "providers/cpu/window.h"

#include <algorithm>

#include "providers/cpu/build_kernel.h"

namespace steep::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b > 0 ? 1 : 0); }

/// A limit at which sums of a few positions cannot overflow.
constexpr int64_t kFar = int64_t{1} << 60;

bool is_far(__int128 place) { return place > kFar || place < -kFar; }

}  // namespace

std::pair<int64_t, int64_t> WindowAxis::windows_inside(int64_t k) const {
  const int64_t shift = pad_begin - k * dilation;  // 0 <= o stride - shift < in
  const int64_t first = std::clamp<int64_t>(ceil_div(shift, stride), 0, out);
  return {first, std::clamp<int64_t>(ceil_div(in + shift, stride), first, out)};
}

std::pair<int64_t, int64_t> WindowAxis::taps_inside(int64_t o) const {
  const int64_t start = o * stride - pad_begin;  // 0 <= start + k dilation < in
  const int64_t first = std::clamp<int64_t>(ceil_div(-start, dilation), 0, kernel);
  return {first, std::clamp<int64_t>(ceil_div(in - start, dilation), first, kernel)};
}

int64_t WindowAxis::taps_before_end(int64_t o) const {
  const int64_t start = o * stride - pad_begin;
  return std::clamp<int64_t>(ceil_div(in + pad_end - start, dilation), 0, kernel);
}

std::optional<std::vector<WindowAxis>> read_window(const Attrs& attrs, const Dims& in,
                                                   const Dims& out, const Dims& kernel,
                                                   std::string* why_not) {
  const size_t rank = kernel.size();
  const Ints strides = attrs.ints("strides", Ints(rank, 1));
  const Ints dilations = attrs.ints("dilations", Ints(rank, 1));
  const Ints pads = attrs.ints("pads", Ints(2 * rank, 0));
  const std::string auto_pad = attrs.string("auto_pad");
  if (rank == 0 || in.size() != rank + 2 || out.size() != rank + 2 || strides.size() != rank ||
      dilations.size() != rank || pads.size() != 2 * rank) {
    *why_not = "the kernel's dimensions and those of the input, pads, strides or dilations differ";
    return {};
  }
  std::vector<WindowAxis> axes(rank);
  for (size_t i = 0; i < rank; ++i) {
    WindowAxis& axis = axes[i];
    axis = {.in = in[i + 2],
            .out = out[i + 2],
            .kernel = kernel[i],
            .stride = strides[i],
            .dilation = dilations[i]};
    if (axis.stride < 1 || axis.dilation < 1 || axis.kernel < 1) {
      *why_not = "strides, dilations and kernel extents have to be positive";
      return {};
    }
    if (is_far(__int128{axis.kernel} * axis.dilation) || is_far(__int128{axis.out} * axis.stride) ||
        is_far(axis.dilation) || is_far(axis.stride) || is_far(pads[i]) || is_far(pads[rank + i])) {
      *why_not = "a window, its steps or the padding reach further than 2^60";
      return {};
    }
    if (auto_pad == "NOTSET" || auto_pad.empty()) {
      axis.pad_begin = pads[i];
      axis.pad_end = pads[rank + i];
    } else if (auto_pad != "VALID") {
      const int64_t total =
          std::max<int64_t>(0, (axis.out - 1) * axis.stride + axis.reach() - axis.in);
      axis.pad_begin = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      axis.pad_end = total - axis.pad_begin;
    }
  }
  return axes;
}

std::array<WindowAxis, 3> as_volume(const std::vector<WindowAxis>& axes) {
  std::array<WindowAxis, 3> volume;
  std::copy(axes.begin(), axes.end(), volume.end() - static_cast<int64_t>(axes.size()));
  return volume;
}

}  // namespace steep::cpu
