// Arithmetic, casts and constants.

#include <fmt/format.h>

#include "model/read/tensor_proto.h"
#include "model/upgrade/rules.h"
#include "ops/build.h"
#include "ops/wide.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {

Bindings upgrade_clip(const Call& c) {
  const Value x = c.need(0);
  auto bound = [&](const char* name) {
    return c.attrs.has(name) ? scalar(c.graph, c.attrs.real(name, 0), x.dtype()) : Value();
  };
  return {c.emit1("Clip", {x, bound("min"), bound("max")})};
}

// Y = alpha * A' * B' + beta * C
Bindings upgrade_gemm(const Call& c) {
  Value a = c.need(0);
  Value b = c.need(1);
  Value bias = c.in(2);
  const double alpha = c.attrs.real("alpha", 1);
  const double beta = c.attrs.real("beta", 1);
  const Value like = a;
  if (alpha != 1 && is_half(a.dtype())) {  // the unscaled product may overflow in 16 bits
    a = cast(a, DType::f32);
    b = cast(b, DType::f32);
    if (bias) bias = cast(bias, DType::f32);
  }
  if (c.attrs.integer("transA", 0) != 0) a = transpose(a, {1, 0});
  if (c.attrs.integer("transB", 0) != 0) b = transpose(b, {1, 0});
  Value y = c.emit1("MatMul", {a, b});
  if (alpha != 1) y = y * alpha;
  if (bias && beta != 0) y = y + (beta == 1 ? bias : bias * beta);
  return {cast_like(y, like)};
}

// Before opset 13 these flattened their input to two dimensions at `axis` (default 1) and
// normalised rows.
Bindings upgrade_softmax(const Call& c) {
  const Value x = c.need(0);
  int64_t axis = c.attrs.integer("axis", 1);
  if (axis < 0) axis += x.rank();
  if (axis == x.rank() - 1) return {c.emit1(c.op, {x}, {{"axis", int64_t{-1}}})};
  Call flatten = c;
  flatten.op = "Flatten";
  flatten.attrs = {{"axis", axis}};
  const Value rows = upgrade_flatten(flatten)[0].value();
  return {reshape(c.emit1(c.op, {rows}, {{"axis", int64_t{-1}}}), shape_of(x))};
}

Bindings upgrade_cast(const Call& c) {
  const DType to = dtype_from_onnx(static_cast<int32_t>(c.attrs.integer("to", 0)), c.name);
  if (c.need(0).dtype() == to) return {c.need(0)};
  return c.as_is();
}

Bindings upgrade_cast_like(const Call& c) {
  const Value x = c.need(0);
  const DType to = c.need(1).dtype();
  if (x.dtype() == to) return {x};
  Attrs attrs = c.attrs;
  attrs.set("to", static_cast<int64_t>(to));
  return {c.emit1("Cast", {x}, attrs)};
}

Bindings upgrade_constant(const Call& c) {
  Tensor value;
  if (const Attr* a = c.attrs.find("value")) {
    if (const auto* tensor = std::get_if<Tensor>(a)) value = *tensor;
  } else if (c.attrs.has("value_int")) {
    value = Tensor::scalar(c.attrs.integer("value_int", 0));
  } else if (c.attrs.has("value_float")) {
    value = Tensor::scalar(static_cast<float>(c.attrs.real("value_float", 0)));
  } else if (c.attrs.has("value_ints")) {
    const Ints values = c.attrs.ints("value_ints");
    value = Tensor::from(values, {static_cast<int64_t>(values.size())});
  } else if (const Attr* floats = c.attrs.find("value_floats")) {
    const auto& wide = std::get<Floats>(*floats);
    const std::vector<float> values(wide.begin(), wide.end());
    value = Tensor::from(values, {static_cast<int64_t>(values.size())});
  }
  if (!value.defined()) {
    c.fail("A constant is not a tensor of numbers.", "value, value_int(s) or value_float(s)",
           "another attribute", "Export the model without string constants.");
  }
  return {c.graph.add_constant(value, c.name)};
}

Bindings upgrade_constant_of_shape(const Call& c) {
  constexpr int64_t kLargestFolded = 1 << 16;  // bytes; a larger one is made at run time
  const auto shape = known_ints(c.need(0));
  if (!shape) return c.as_is();
  Tensor value = Tensor::scalar(0.0F);
  if (const Attr* a = c.attrs.find("value")) value = std::get<Tensor>(*a);
  int64_t bytes = 0;
  const auto width = static_cast<int64_t>(size_of(value.dtype()));
  if (value.size() != 1 || __builtin_mul_overflow(element_count(*shape), width, &bytes)) {
    c.fail("A ConstantOfShape node has an invalid value or shape.",
           "one value, and a shape that fits memory",
           fmt::format("{}, shape {}", counted(value.size(), "value"), to_string(*shape)),
           "Export the model again.");
  }
  if (bytes > kLargestFolded) return c.as_is();
  Tensor result = Tensor::empty(value.dtype(), *shape);
  auto* to = static_cast<char*>(result.data());
  for (int64_t at = 0; at < bytes; at += width) {
    std::memcpy(to + at, value.data(), static_cast<size_t>(width));
  }
  return {c.graph.add_constant(result, c.name)};
}

// 16-bit ranges are computed in float32: neither kernels nor ONNX's inference of the extent support
// the narrow types. PyTorch's exporter writes integral bounds as integers beside float ones.
Bindings upgrade_range(const Call& c) {
  DType dtype = c.need(0).dtype();
  for (size_t i : {1, 2}) {
    if (c.from_pytorch && !is_float(dtype)) dtype = c.need(i).dtype();
  }
  const bool half = dtype == DType::f16 || dtype == DType::bf16;
  if (!half && !c.from_pytorch) return c.as_is();
  auto number = [&](size_t i) { return cast(c.need(i), half ? DType::f32 : dtype); };
  return {cast(c.emit1("Range", {number(0), number(1), number(2)}), dtype)};
}

Bindings upgrade_identity(const Call& c) {
  if (!c.has(0)) c.fail("A node lacks an input.", "an input 0", "none", "Export the model again.");
  if (c.stops_gradient) return {c.emit1("steep.StopGradient", {c.need(0)})};
  return {c.inputs[0]};
}

}  // namespace steep
