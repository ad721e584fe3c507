// Random operators: each draws from its own stream under the engine's seed. The `seed` attribute of
// an operator identifies its stream, so that operators with equal seeds draw equal numbers.

#include <bit>
#include <cmath>

#include "ir/seed.h"
#include "model/read/tensor_proto.h"
#include "model/upgrade/rules.h"
#include "ops/positions.h"

namespace steep {
namespace {

int64_t stream_of(const Call& c) {
  if (!c.attrs.has("seed")) return c.writer.next_stream();
  return std::bit_cast<uint32_t>(static_cast<float>(c.attrs.real("seed", 0)));
}

DType dtype_attribute(const Call& c, DType otherwise) {
  const auto number = c.attrs.integer("dtype", static_cast<int64_t>(otherwise));
  return dtype_from_onnx(static_cast<int32_t>(number), c.name);
}

/// Random numbers of `shape` from `op`, with the attributes of the ONNX node.
Value draw(const Call& c, std::string_view op, Value shape, DType dtype) {
  if (!is_float(dtype)) {
    c.fail("Random numbers are requested in a type that cannot hold them.", "a float type",
           std::string(name_of(dtype)), "Cast the numbers after they are drawn.");
  }
  Attrs attrs{{"stream", stream_of(c)}, {"dtype", static_cast<int64_t>(dtype)}};
  const Value seed = seed_of(c.graph);
  for (const char* name : {"mean", "scale", "low", "high"}) {
    if (const Attr* attribute = c.attrs.find(name)) attrs.set(name, *attribute);
  }
  const bool normal = op.starts_with("RandomNormal");
  return c.emit1(normal ? "steep.RandomNormal" : "steep.RandomUniform", {seed, shape}, attrs);
}

}  // namespace

Bindings upgrade_random(const Call& c) {
  return {draw(c, c.op, c.ints(c.attrs.ints("shape")), dtype_attribute(c, DType::f32))};
}

Bindings upgrade_random_like(const Call& c) {
  const Value x = c.need(0);
  return {draw(c, c.op, shape_of(x), dtype_attribute(c, x.dtype()))};
}

// ONNX's function for Bernoulli has the comparison reversed: it gives 1 with probability 1 - x.
Bindings upgrade_bernoulli(const Call& c) {
  const Value x = c.need(0);
  const Value u = draw(c, "RandomUniform", shape_of(x), x.dtype());
  return {cast(less(u, x), dtype_attribute(c, x.dtype()))};
}

// The class of a sample is the number of classes whose cumulative probability is below a uniform
// random number.
Bindings upgrade_multinomial(const Call& c) {
  const Value x = cast(c.need(0), DType::f32);
  const int64_t samples = c.attrs.integer("sample_size", 1);
  if (samples < 0) {
    c.fail("The number of samples is negative.", "0 or more", std::to_string(samples),
           "Export the model again.");
  }
  const Value last = c.graph.add_constant(Tensor::scalar(int64_t{1}));
  const Value cumulative = apply("CumSum", {apply("Softmax", {x}, {{"axis", int64_t{1}}}), last});
  const Value rows = as_vector(extent_of(x, 0));
  const Value shape = concat({rows, c.ints({samples})}, 0);
  const Value u = draw(c, "RandomUniform", shape, DType::f32);
  const Value below = less(unsqueeze(cumulative, {1}), unsqueeze(u, {2}));
  const Value index = sum(cast(below, DType::i64), {2}, false);
  const Value highest = extent_of(x, 1) - 1;  // rounding may leave the last sum below u
  return {cast(apply("Min", {index, highest}), dtype_attribute(c, DType::i32))};
}

}  // namespace steep
