// Resize(x, roi?, scales?, sizes?) → y and steep.ResizeGrad(dy, shape, roi?, scales?, sizes?) → dx,
// with the same attributes: interpolation is linear in x, one axis after the other.
#include "ops/build.h"
#include "ops/positions.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

const std::initializer_list<Attribute> kResizeAttributes = {
    {"antialias", 0},
    {"coordinate_transformation_mode", "half_pixel"},
    {"cubic_coeff_a", -0.75},
    {"exclude_outside", 0},
    {"extrapolation_value", 0.0},
    {"keep_aspect_ratio_policy", "stretch"},
    {"mode", "nearest"},
    {"nearest_mode", "round_prefer_floor"}};

Grads resize_vjp(Node n, const Grads& dy) {
  return {apply("steep.ResizeGrad",
                {dy[0], shape_of(n.input(0)), n.input(1), n.input(2), n.input(3)}, n.attrs())};
}

Grads resize_grad_vjp(Node n, const Grads& dy) {
  Attrs attrs = n.attrs();
  attrs.set("extrapolation_value", 0.0);
  return {apply("Resize", {dy[0], n.input(2), n.input(3), n.input(4)}, std::move(attrs))};
}

std::vector<Type> resize_grad_infer(Node n) { return {{n.input(0).dtype(), shape_in(n.input(1))}}; }

/// The identity matrix [extent, extent].
Value unit_matrix(Value extent, DType dtype) {
  const Value zero = scalar(extent.graph(), 0, dtype);
  return apply("EyeLike", {apply("Expand", {zero, concat({extent, extent}, 0)})});
}

/// The matrix [before, after] by which the Resize of gradient n multiplies along its i-th axis,
/// when all axes share one scale: a Resize of images of the full shape that vary only along that
/// axis.
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

/// As shared_scale_matrix(), when each axis has its own scale, or its own region (`roi`, may be
/// null): a Resize of the identity matrix.
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

/// Resize multiplies by a matrix along each axis, so the gradient multiplies by the transposes.
/// Points outside get a constant, so their entries in the matrix are zeros.
std::vector<Value> resize_grad_in_parts(Node n) {
  Value dx = n.input(0);
  const Value shape = n.input(1), scales = n.input(3);
  const int64_t rank = dx.rank();
  Attrs attrs = n.attrs();
  Ints axes = attrs.ints("axes", counting(0, rank));
  for (int64_t& axis : axes) axis = normal_axis(n, axis, rank);
  const bool crops = text_of(n, "coordinate_transformation_mode") == "tf_crop_and_resize";
  const bool shares = text_of(n, "keep_aspect_ratio_policy") != "stretch";
  if (crops && shares) {
    throw ModelError({.what = "The gradient of this resizing cannot be written as ONNX.",
                      .node = n.name(),
                      .op = n.op(),
                      .expected = "tf_crop_and_resize or keep_aspect_ratio_policy, not both",
                      .remedy = "Give the sizes that the ratio leads to, and no policy."});
  }
  attrs.erase("axes");
  attrs.set("extrapolation_value", 0.0);
  const Tensor* numbers = constant(scales);
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = axes[i], at = static_cast<int64_t>(i);
    const bool same = provably_equal(n.output(0).shape()[static_cast<size_t>(axis)],
                                     n.input(0).shape()[static_cast<size_t>(axis)]);
    const bool unscaled = !scales || (numbers != nullptr && numbers->data<float>()[i] == 1);
    if (same && unscaled && !crops && !shares) continue;
    const Value matrix = shares
                             ? shared_scale_matrix(n, axes, at, attrs)
                             : own_scale_matrix(n, crops ? n.input(2) : Value(), axes, at, attrs);
    Ints perm = counting(0, rank);  // a swap, its own inverse
    std::swap(perm[static_cast<size_t>(axis)], perm.back());
    dx = transpose(matmul(transpose(dx, perm), swap_last(matrix)), perm);
  }
  return {reshape(dx, shape)};
}

/// Sets the shape when a size is 0, which ONNX's function does not support.
void resize_refine(Node n) {
  const Tensor* sizes = constant(n.input(3));
  const Value y = n.output(0);
  if (sizes == nullptr || !y.type().shape) return;
  if (text_of(n, "keep_aspect_ratio_policy") != "stretch") return;
  const Ints extents = sizes->to_ints();
  const Ints axes = n.attrs().ints("axes");
  if (!axes.empty() && axes.size() != extents.size()) return;
  Shape shape = y.shape();
  for (size_t i = 0; i < extents.size(); ++i) {
    const int64_t axis = axes.empty() ? static_cast<int64_t>(i) : axes.at(i);
    if (extents[i] == 0) shape.at(static_cast<size_t>(normal_axis(n, axis, y.rank()))) = Dim(0);
  }
  n.graph().set_type(y, {y.dtype(), shape});
}

}  // namespace

extern const OpDef kResize = {.name = "Resize",
                              .attributes = kResizeAttributes,
                              .ranks = ". 1 1 1",
                              .settings = {1, 2},
                              .vjp = resize_vjp,
                              .refine = resize_refine};
extern const OpDef kSteepResizeGrad = {.name = "steep.ResizeGrad",
                                       .attributes = kResizeAttributes,
                                       .vjp = resize_grad_vjp,
                                       .infer = resize_grad_infer,
                                       .export_decomposition = resize_grad_in_parts};

}  // namespace steep
