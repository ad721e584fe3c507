// DeformConv(x[N, C, H, W], w[O, C / group, h, w], offset, bias?, mask?): a convolution whose taps
// are moved by `offset` and scaled by `mask`. Dai et al. 2017; Zhu et al. 2019. Computed as
// bilinear sampling of the images (GridSample), then a matrix product.
#include <algorithm>

#include "ops/build.h"
#include "ops/steep_types.h"
#include "runtime/budget.h"

namespace steep {
namespace {

int64_t known(Node n, Value v, int64_t axis) {
  const Dim& d = v.shape()[static_cast<size_t>(axis)];
  if (!d.known()) {
    throw_shape_error(n,
                      "A deformable convolution needs known extents for all axes except the batch.",
                      "numbers", to_string(v.type()));
  }
  return d.value();
}

/// The position of tap k of window o before the offset: [1, 1, taps, 1, 1] + [1, 1, 1, out_h,
/// out_w].
Value positions(Node n, int axis, const Ints& kernel, const Ints& out) {
  const Attrs& attrs = n.attrs();
  const auto a = static_cast<size_t>(axis);
  const int64_t stride = attrs.ints("strides", Ints(2, 1))[a];
  const int64_t dilation = attrs.ints("dilations", Ints(2, 1))[a];
  const int64_t pad = attrs.ints("pads", Ints(4, 0))[a];
  std::vector<float> taps, windows;
  const int64_t all = element_count(kernel);
  for (int64_t count : {all, out[a]}) {
    require_bytes(static_cast<size_t>(std::min(count, int64_t{1} << 50)) * sizeof(float),
                  "the positions of a convolution's taps");
  }
  for (int64_t k = 0; k < all; ++k) {
    const int64_t place = axis == 0 ? k / kernel[1] : k % kernel[1];
    taps.push_back(static_cast<float>(place) * static_cast<float>(dilation));
  }
  for (int64_t o = 0; o < out[a]; ++o) {
    windows.push_back(static_cast<float>(static_cast<double>(o) * static_cast<double>(stride) -
                                         static_cast<double>(pad)));
  }
  Graph& g = n.graph();
  const auto count = static_cast<int64_t>(taps.size());
  Value tap = g.add_constant(Tensor::from(taps, {1, 1, count, 1, 1}));
  const Dims shape = axis == 0 ? Dims{1, 1, 1, out[0], 1} : Dims{1, 1, 1, 1, out[1]};
  Value window = g.add_constant(Tensor::from(windows, shape));
  return cast_like(tap + window, n.input(0));
}

std::vector<Value> deform_conv_decompose(Node n) {
  Value x = n.input(0), w = n.input(1), offset = n.input(2), bias = n.input(3), mask = n.input(4);
  if (x.rank() != 4) {
    throw_shape_error(n, "A deformable convolution supports images only.", "4 dimensions",
                      to_string(x.type()));
  }
  const int64_t groups = integer_of(n, "group"), offset_groups = integer_of(n, "offset_group");
  const int64_t channels = known(n, x, 1), height = known(n, x, 2), width = known(n, x, 3);
  const Ints kernel{known(n, w, 2), known(n, w, 3)};
  const Ints out{known(n, offset, 2), known(n, offset, 3)};
  const int64_t outputs = known(n, w, 0), taps = element_count(kernel);

  // [N moved, taps out_h, out_w, 2] in [-1, 1], x before y, for align_corners = 0.
  Value shifts = reshape(offset, {-1, offset_groups, taps, 2, out[0], out[1]});
  auto coordinate = [&](int axis, int64_t extent) {
    Value shift = squeeze(apply("Slice", {shifts, ints(n.graph(), {axis}),
                                          ints(n.graph(), {axis + 1}), ints(n.graph(), {3})}),
                          {3});
    Value at = positions(n, axis, kernel, out) + shift;
    return unsqueeze((2.0 * at + 1.0) / static_cast<double>(extent) - 1.0, {5});
  };
  Value grid = concat({coordinate(1, width), coordinate(0, height)}, 5);
  grid = reshape(grid, {-1, taps * out[0], out[1], 2});
  Value images = reshape(x, {-1, channels / offset_groups, height, width});
  Value samples = apply("GridSample", {images, grid}, {{"align_corners", int64_t{0}}});
  samples = reshape(samples, {-1, offset_groups, channels / offset_groups, taps, out[0] * out[1]});
  if (mask) samples = samples * reshape(mask, {-1, offset_groups, 1, taps, out[0] * out[1]});

  Value columns = reshape(samples, {-1, groups, channels / groups * taps, out[0] * out[1]});
  Value weights = reshape(w, {1, groups, outputs / groups, channels / groups * taps});
  Value y = reshape(matmul(weights, columns), {-1, outputs, out[0], out[1]});
  return {bias ? y + reshape(bias, {1, outputs, 1, 1}) : y};
}

}  // namespace

extern const OpDef kDeformConv = {.name = "DeformConv",
                                  .attributes = {{"group", 1}, {"offset_group", 1}},
                                  .ranks = "3+ = = 1 =",
                                  .decompose = deform_conv_decompose};

}  // namespace steep
