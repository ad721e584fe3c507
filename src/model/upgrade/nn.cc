// Layers: normalisation, dropout, sampling.

#include <fmt/format.h>

#include "ir/seed.h"
#include "model/upgrade/rules.h"
#include "ops/build.h"
#include "ops/defs/batch_norm.h"
#include "ops/wide.h"

namespace steep {
namespace {

double default_ratio() { return default_real("steep.Dropout", "ratio"); }

/// The ratio from input 1.
double dropout_ratio(const Call& c) {
  const Value ratio = c.in(1);
  if (!ratio) return default_ratio();
  if (const auto value = scalar_constant(ratio); value && is_float(ratio.dtype())) return *value;
  c.fail("The ratio of a dropout is not a constant of float32 or float64.", "a constant",
         "a computed value", "Export the model with a fixed dropout ratio.");
}

/// Drops elements of input 0 when `switched` is true at run time; always when `switched` is null.
Bindings drop(const Call& c, double ratio, Value switched) {
  const Value x = c.need(0);
  if (!(ratio >= 0 && ratio < 1)) {
    c.fail("The ratio of a dropout is out of range.", "0 to 1, without 1", fmt::format("{}", ratio),
           "Give a smaller ratio.");
  }
  if (ratio == 0) {
    if (!c.wants(1)) return {x};
    Tensor all = Tensor::zeros(DType::boolean, {1});
    *static_cast<uint8_t*>(all.data()) = 1;
    return {x, apply("ConstantOfShape", {shape_of(x)}, {{"value", all}})};
  }
  const Attrs attrs = {{"ratio", ratio}, {"stream", c.writer.next_stream()}};
  const Value seed = seed_of(c.graph);
  Value y = c.emit1("steep.Dropout", {x, seed}, attrs);
  Value mask = c.wants(1) ? c.emit1("steep.DropoutMask", {x, seed}, attrs) : Value();
  if (switched) {
    y = where(switched, y, x);
    if (mask) mask = apply("Or", {mask, apply("Not", {switched})});
  }
  return {y, mask};
}

}  // namespace

// Dropout(data, ratio, training_mode) → steep.Dropout(data, seed). Before opset 12 the runtime
// chose the mode, so the importer's caller chooses it.
Bindings upgrade_dropout_without_mode(const Call& c) {
  return drop(c, c.training ? c.attrs.real("ratio", default_ratio()) : 0, Value());
}

// From opset 12 on the model gives the mode, and the default is inference. But PyTorch's exporters
// write the dropout of scaled_dot_product_attention with a ratio and without a mode, and only in
// training (in inference the ratio is 0): there a ratio means training.
Bindings upgrade_dropout(const Call& c) {
  const Value mode = c.in(2);
  const auto ints = known_ints(mode);
  const bool unsaid = !mode && !(c.from_pytorch && c.has(1));
  const bool off = !c.training || unsaid || (ints && ints->size() == 1 && (*ints)[0] == 0);
  return drop(c, off ? 0 : dropout_ratio(c), ints ? Value() : mode);
}

Bindings upgrade_layer_normalization(const Call& c) {
  const std::vector<Value> y =
      c.emit("LayerNormalization", {c.need(0), c.need(1), c.in(2)}, c.attrs, 3);
  return {y.begin(), y.end()};
}

// The axis must be checked here: ONNX's function accepts an axis that is out of range.
Bindings upgrade_rms_normalization(const Call& c) {
  const int64_t axis = c.attrs.integer("axis", -1), rank = c.need(0).rank();
  if (axis < -rank || axis >= rank) {
    c.fail("An axis is out of range.", fmt::format("{} to {}", -rank, rank - 1),
           fmt::format("axis {}", axis), "Export the model again.");
  }
  return c.as_is();
}

Bindings upgrade_batch_normalization(const Call& c) {
  Attrs attrs = c.attrs;
  const bool trains = attrs.integer("training_mode", 0) != 0;
  if (trains && c.sample_variance) attrs.set(kSampleVariance, int64_t{1});
  const std::vector<Value> y =
      c.emit("BatchNormalization", {c.need(0), c.need(1), c.need(2), c.need(3), c.need(4)}, attrs,
             trains ? 3 : 1);
  return {y.begin(), y.end()};
}

Bindings upgrade_batch_normalization_without_mode(const Call& c) {
  Attrs attrs = c.attrs;
  if (attrs.integer("spatial", 1) == 0) {
    c.fail("BatchNormalization over single elements was removed from ONNX.", "spatial = 1",
           "spatial = 0", "Export with opset 9 or newer.");
  }
  attrs.erase("spatial");
  // Before opset 14 the number of outputs, 1 or 5, said whether the node trains.
  const std::vector<Value> inputs = {c.need(0), c.need(1), c.need(2), c.need(3), c.need(4)};
  if (c.outputs() == 1) return {c.emit1("BatchNormalization", inputs, attrs)};
  attrs.set("training_mode", int64_t{1});
  std::vector<Value> y = c.emit("BatchNormalization", inputs, attrs, 3);
  if (c.wants(3) || c.wants(4)) {  // the statistics of this batch; rarely read
    Ints axes;
    for (int64_t i = 0; i < inputs[0].rank(); ++i) {
      if (i != 1) axes.push_back(i);
    }
    const Value x = is_half(inputs[0].dtype()) ? cast(inputs[0], DType::f32) : inputs[0];
    const Value distance = x - mean(x, axes, true);
    for (const Value v : {x, distance * distance})
      y.push_back(cast_like(mean(v, axes, false), inputs[0]));
  }
  return {y.begin(), y.end()};
}

// Before opset 21 scale and bias had one element per group, not per channel.
Bindings upgrade_group_normalization(const Call& c) {
  const Value x = c.need(0);
  const int64_t groups = c.attrs.integer("num_groups", 1);
  const Value channels = apply("Shape", {x}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  const Value each = apply("Div", {channels, c.ints({groups})});
  const Value shape = concat({c.ints({groups}), each}, 0);
  auto spread = [&](Value v) { return reshape(apply("Expand", {unsqueeze(v, {1}), shape}), {-1}); };
  return {c.emit1("GroupNormalization", {x, spread(c.need(1)), spread(c.need(2))}, c.attrs)};
}

Bindings upgrade_grid_sample(const Call& c) {
  Attrs attrs = c.attrs;
  const std::string mode = attrs.string("mode", "bilinear");
  if (mode == "bilinear") attrs.set("mode", std::string("linear"));
  if (mode == "bicubic") attrs.set("mode", std::string("cubic"));
  return {c.emit1("GridSample", {c.need(0), c.need(1)}, attrs)};
}

Bindings upgrade_roi_align(const Call& c) {
  Attrs attrs = c.attrs;
  attrs.set("coordinate_transformation_mode", std::string("output_half_pixel"));
  return {c.emit1("RoiAlign", {c.need(0), c.need(1), c.need(2)}, attrs)};
}

}  // namespace steep
