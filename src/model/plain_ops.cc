#include "model/plain_ops.h"

#include <array>

#include "model/plain_loops.h"
#include "ops/build.h"
#include "ops/conv.h"
#include "ops/parts.h"
#include "ops/positions.h"
#include "steep/error.h"

namespace steep {
namespace {

Ints counting(int64_t begin, int64_t end) {
  Ints axes;
  for (int64_t i = begin; i < end; ++i) axes.push_back(i);
  return axes;
}

Value swap_first(Value x) {
  Ints perm = counting(0, x.rank());
  std::swap(perm.at(0), perm.at(1));
  return transpose(x, perm);
}

/// Settings of a convolution with their defaults, auto_pad written out.
struct Window {
  int64_t rank;
  Ints strides, dilations, pads;

  /// `x` and `w` are the shapes of the convolution's operands.
  Window(Node n, const Shape& x, const Shape& w) : rank(static_cast<int64_t>(w.size()) - 2) {
    const Attrs& attrs = n.attrs();
    const auto axes = static_cast<size_t>(rank);
    strides = attrs.ints("strides", Ints(axes, 1));
    dilations = attrs.ints("dilations", Ints(axes, 1));
    pads = attrs.ints("pads", Ints(2 * axes, 0));
    const std::string auto_pad = attrs.string("auto_pad", "NOTSET");
    if (auto_pad == "NOTSET") return;
    pads.assign(2 * axes, 0);
    for (size_t i = 0; auto_pad != "VALID" && i < axes; ++i) {
      const Dim& kernel = w[i + 2];
      // With a stride of 1 every extent is padded alike.
      const Dim in = strides[i] == 1 ? Dim(1) : x[i + 2];
      if (!in.known() || !kernel.known()) {
        throw ModelError({.what = "The pads of a convolution depend on unknown extents.",
                          .node = n.name(),
                          .op = n.op(),
                          .expected = "known spatial extents",
                          .received = to_string(x),
                          .remedy = "Export with pads instead of auto_pad."});
      }
      const int64_t reach = (kernel.value() - 1) * dilations[i] + 1;
      const int64_t out = (in.value() + strides[i] - 1) / strides[i];
      const int64_t total = std::max<int64_t>((out - 1) * strides[i] + reach - in.value(), 0);
      pads[i] = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      pads[axes + i] = total - pads[i];
    }
  }
};

/// ConvTranspose without padding reaches from the first window to the last; what lies outside is
/// cut off, or filled up with zeros that no window read.
std::vector<Value> conv_grad_input(Node n) {
  Graph& g = n.graph();
  const Value dy = n.input(0), w = n.input(1), shape = n.input(2);
  const Window window(n, n.output(0).shape(), w.shape());
  Value dx = apply("ConvTranspose", {dy, w},
                   {{"strides", window.strides},
                    {"dilations", window.dilations},
                    {"group", n.attrs().integer("group", 1)}});
  const Ints begins(window.pads.begin(), window.pads.begin() + window.rank);
  const Value ends = part(shape, 2, window.rank + 2) + ints(g, begins);
  const Value missing = apply("Max", {ends - part(shape_of(dx), 2, window.rank + 2), ints(g, {0})});
  const Ints zeros(static_cast<size_t>(window.rank) + 4, 0);
  dx = apply("Pad", {dx, concat({ints(g, zeros), missing}, 0)});
  return {apply("Slice", {dx, ints(g, begins), ends, ints(g, counting(2, window.rank + 2))})};
}

/// A convolution of x with dy, batch and channels having changed places.
std::vector<Value> conv_grad_weight(Node n) {
  Graph& g = n.graph();
  const Value dy = n.input(0), x = n.input(1), shape = n.input(2);
  const Window window(n, x.shape(), n.output(0).shape());
  const int64_t group = n.attrs().integer("group", 1), rank = x.rank();
  Value images = swap_first(x);
  if (group > 1) {  // [N, C, …] → [C / group, group N, …]
    const Value extents = shape_of(x), spatial = part(extents, 2, rank);
    const Value per_group = part(extents, 1) / ints(g, {group});
    images = reshape(x, concat({part(extents, 0), ints(g, {group}), per_group, spatial}, 0));
    Ints perm = counting(0, rank + 1);
    std::swap(perm[0], perm[2]);
    images = transpose(images, perm);
    images = reshape(images, concat({per_group, ints(g, {-1}), spatial}, 0));
  }
  const Value dw = apply("Conv", {images, swap_first(dy)},
                         {{"strides", window.dilations},
                          {"dilations", window.strides},
                          {"pads", window.pads},
                          {"group", group}});
  // A stride that does not divide leaves more places than the kernel had.
  const Ints starts(static_cast<size_t>(window.rank), 0);
  return {swap_first(
      apply("Slice", {dw, ints(g, starts), part(shape, 2, rank), ints(g, counting(2, rank))}))};
}

std::vector<Value> max_pool_grad(Node n) {
  const Value dy = n.input(0), x = n.input(1);
  Attrs attrs = n.attrs();
  attrs.erase("storage_order");
  const Value chosen = apply_n("MaxPool", std::vector{x}, 2, std::move(attrs))[1];
  const Value zeros =
      apply("Expand", {scalar(n.graph(), 0, dy.dtype()), unsqueeze(apply("Size", {x}), {0})});
  return {reshape_like(apply("ScatterElements", {zeros, reshape(chosen, {-1}), reshape(dy, {-1})},
                             {{"reduction", std::string("add")}}),
                       x)};
}

/// [N, C, …] → [N C, 1, …]
Value separate_planes(Value x) {
  const Value shape = shape_of(x), count = apply("ReduceProd", {part(shape, 0, 2)});
  return reshape(x, concat({count, ints(x.graph(), {1}), part(shape, 2, x.rank())}, 0));
}

Value window_of_ones(Node n, DType dtype) {
  const Ints kernel = n.attrs().ints("kernel_shape");
  Dims dims{1, 1};
  dims.insert(dims.end(), kernel.begin(), kernel.end());
  return apply("Expand", {scalar(n.graph(), 1, dtype), ints(n.graph(), dims)});
}

/// With ceil_mode the last window may reach over the padding, but has to start before that at the
/// end.
std::vector<Value> sum_pool(Node n) {
  Graph& g = n.graph();
  const Value x = n.input(0), ones = window_of_ones(n, x.dtype());
  const Value rows = separate_planes(x), counts = part(shape_of(x), 0, 2);
  const bool same = n.attrs().string("auto_pad", "NOTSET").rfind("SAME", 0) == 0;
  const bool ceil = n.attrs().integer("ceil_mode", 0) != 0 && !same;
  Attrs attrs = n.attrs();
  Value ends;
  if (ceil) {
    Window window(n, rows.shape(), ones.shape());
    Ints begins;
    for (size_t i = 0; i < window.strides.size(); ++i) {
      window.pads[window.strides.size() + i] += window.strides[i] - 1;
      begins.push_back(window.pads[i] + window.strides[i] - 1);
    }
    ends = (part(shape_of(x), 2, x.rank()) + ints(g, begins)) / ints(g, window.strides);
    attrs.set("pads", window.pads);
    attrs.erase("auto_pad");
  }
  Value y = conv(rows, ones, attrs);
  if (ceil) {
    const Ints zeros(static_cast<size_t>(x.rank()) - 2, 0);
    y = apply("Slice", {y, ints(g, zeros), ends, ints(g, counting(2, x.rank()))});
  }
  return {reshape(y, concat({counts, part(shape_of(y), 2, x.rank())}, 0))};
}

std::vector<Value> sum_pool_grad(Node n) {
  Graph& g = n.graph();
  const Value dy = n.input(0), shape = n.input(1);
  const Value rows = separate_planes(dy);
  const Value dx = steep::conv_grad_input(
      rows, window_of_ones(n, dy.dtype()),
      concat({part(shape_of(rows), 0), ints(g, {1}), part(shape, 2, dy.rank())}, 0), n.attrs());
  return {reshape(dx, shape)};
}

/// How many elements each mean is over follows from the sum and the mean of ones.
std::vector<Value> average_pool_grad(Node n) {
  const Value dy = n.input(0), shape = n.input(1);
  const Value ones = apply("Expand", {scalar(n.graph(), 1, dy.dtype()), shape});
  Attrs attrs = n.attrs();
  attrs.erase("count_include_pad");
  const Value sums = apply("steep.SumPool", {ones}, attrs);
  const Value share = apply("AveragePool", {ones}, n.attrs()) /
                      apply("Max", {sums, scalar(n.graph(), 1, dy.dtype())});
  return {apply("steep.SumPoolGrad", {dy * share, shape}, attrs)};
}

/// 1 where the last axis stands at the position of the first, [extent, extent].
Value unit_matrix(Value extent, DType dtype) {
  const Value zero = scalar(extent.graph(), 0, dtype);
  return apply("EyeLike", {apply("Expand", {zero, concat({extent, extent}, 0)})});
}

/// What the Resize whose gradient n is multiplies by along its i-th axis, [before, after], where
/// all its axes share one scale: seen on whole images that vary along that axis alone.
Value shared_scale_matrix(Node n, const Ints& axes, int64_t i, Attrs attrs) {
  Graph& g = n.graph();
  const auto count = static_cast<int64_t>(axes.size());
  const Value extent = part(n.input(1), axes[static_cast<size_t>(i)]);
  const Value one = ints(g, {1});
  std::vector<Value> unit{one, extent}, whole{one, extent}, result{extent};
  Ints others;
  for (int64_t k = 0; k < count; ++k) {
    unit.push_back(k == i ? extent : one);
    whole.push_back(part(n.input(1), axes[static_cast<size_t>(k)]));
    if (k != i) others.push_back(k + 2);
  }
  const Value images =
      apply("Expand",
            {reshape(unit_matrix(extent, n.input(0).dtype()), concat(unit, 0)), concat(whole, 0)});
  attrs.set("axes", counting(2, count + 2));
  Value y = apply("Resize", {images, {}, {}, n.input(4)}, std::move(attrs));
  if (!others.empty()) {
    const Ints first(others.size(), 0), second(others.size(), 1);
    y = apply("Slice", {y, ints(g, first), ints(g, second), ints(g, others)});
  }
  result.push_back(part(shape_of(n.input(0)), axes[static_cast<size_t>(i)]));
  return reshape(y, concat(result, 0));
}

/// The same where each axis has a scale, or a region (in `roi`, if any), of its own: Resize of the
/// unit matrix.
Value own_scale_matrix(Node n, Value roi, const Ints& axes, int64_t i, const Attrs& attrs) {
  const Value scales = n.input(3);
  const Value extent = part(n.input(1), axes[static_cast<size_t>(i)]);
  const Value after = part(shape_of(n.input(0)), axes[static_cast<size_t>(i)]);
  const Value unit = unit_matrix(extent, n.input(0).dtype());
  auto row_and = [](double row, Value column) {
    const Value first = unsqueeze(scalar(column.graph(), row, column.dtype()), {0});
    return concat({first, column}, 0);
  };
  Value region;
  if (roi) {
    const Value end = part(roi, static_cast<int64_t>(axes.size()) + i);
    region = concat({row_and(0, part(roi, i)), row_and(1, end)}, 0);
  }
  if (scales) return apply("Resize", {unit, region, row_and(1, part(scales, i))}, attrs);
  return apply("Resize", {unit, region, {}, concat({extent, after}, 0)}, attrs);
}

/// Along each axis Resize multiplies by a matrix. What lies outside is constant, which the matrix
/// shows as zeros.
std::vector<Value> resize_grad(Node n) {
  Value dx = n.input(0);
  const Value shape = n.input(1), scales = n.input(3);
  const int64_t rank = dx.rank();
  Attrs attrs = n.attrs();
  Ints axes = attrs.ints("axes", counting(0, rank));
  for (int64_t& axis : axes) axis = normal_axis(n, axis, rank);
  const bool crops = attrs.string("coordinate_transformation_mode", "") == "tf_crop_and_resize";
  const bool shares = attrs.string("keep_aspect_ratio_policy", "stretch") != "stretch";
  if (crops && shares) {
    throw ModelError({.what = "The gradient of this resizing cannot be written as ONNX.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "tf_crop_and_resize or keep_aspect_ratio_policy, not both",
                      .remedy = "Give the sizes that the ratio leads to, and no policy."});
  }
  attrs.erase("axes");
  attrs.set("extrapolation_value", 0.0);
  const Tensor* known = constant(scales);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i], at = static_cast<int64_t>(i);
    const bool same = provably_equal(n.output(0).shape()[static_cast<size_t>(axis)],
                                     n.input(0).shape()[static_cast<size_t>(axis)]);
    const bool unscaled = !scales || (known != nullptr && known->data<float>()[i] == 1);
    if (same && unscaled && !crops && !shares) continue;
    const Value matrix = shares
                             ? shared_scale_matrix(n, axes, at, attrs)
                             : own_scale_matrix(n, crops ? n.input(2) : Value(), axes, at, attrs);
    Ints perm = counting(0, rank);  // its own inverse
    std::swap(perm[static_cast<size_t>(axis)], perm.back());
    dx = transpose(matmul(transpose(dx, perm), swap_last(matrix)), perm);
  }
  return {reshape(dx, shape)};
}

struct Plain {
  std::string_view op;
  std::vector<Value> (*say)(Node);
};
constexpr std::array kPlain = {Plain{"steep.ConvGradInput", conv_grad_input},
                               Plain{"steep.ConvGradWeight", conv_grad_weight},
                               Plain{"steep.MaxPoolGrad", max_pool_grad},
                               Plain{"steep.SumPool", sum_pool},
                               Plain{"steep.SumPoolGrad", sum_pool_grad},
                               Plain{"steep.AveragePoolGrad", average_pool_grad},
                               Plain{"steep.ResizeGrad", resize_grad},
                               Plain{"steep.Loop", plain_loop},
                               Plain{"steep.ZerosLike", plain_zeros_like},
                               Plain{"steep.SumOf", plain_sum_of},
                               Plain{"steep.SequenceExtents", plain_sequence_extents},
                               Plain{"steep.Recurrence", recurrence_in_parts},
                               Plain{"CumProd", cum_prod_in_parts},
                               Plain{"steep.RecurrentGrad", recurrent_grad_in_parts},
                               Plain{"steep.GridSampleGrad", grid_sample_grad_in_parts},
                               Plain{"steep.RoiAlignGrad", roi_align_grad_in_parts},
                               Plain{"steep.MaxRoiPoolGrad", max_roi_pool_grad_in_parts}};

}  // namespace

std::vector<Value> in_plain_ops(Node n) {
  for (const Plain& plain : kPlain) {
    if (plain.op == n.op()) return plain.say(n);
  }
  const OpDef* def = find_op(n.op());
  if (def == nullptr || def->decompose == nullptr) return {};
  return def->decompose(n);
}

}  // namespace steep
