// QuantizeLinear, DequantizeLinear, and both in sequence: steep.FakeQuantize. Its gradient passes
// unchanged wherever nothing was clipped (straight-through estimator; Bengio, Léonard and Courville
// 2013).
#include "ops/defs/quantize.h"

#include "ops/positions.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {

QuantisedRange quantised_range(DType dtype) {
  switch (dtype) {
    case DType::u2: return {0, 3};
    case DType::i2: return {-2, 1};
    case DType::u4: return {0, 15};
    case DType::i4: return {-8, 7};
    case DType::u8: return {0, 255};
    case DType::i8: return {-128, 127};
    case DType::u16: return {0, 65535};
    case DType::i16: return {-32768, 32767};
    case DType::f8e4m3fn: return {-448, 448};
    case DType::f8e4m3fnuz: return {-240, 240};
    case DType::f8e5m2:
    case DType::f8e5m2fnuz: return {-57344, 57344};
    case DType::f6e2m3: return {-7.5, 7.5};
    case DType::f6e3m2: return {-28, 28};
    case DType::f4e2m1: return {-6, 6};
    default: break;
  }
  throw ShapeError({.what = "A zero point has a dtype to which nothing is quantised.",
                    .expected = "an integer of at most 16 bits, or a float of at most 8",
                    .received = std::string(name_of(dtype))});
}

namespace {

/// The attributes that determine which elements share a scale.
Attrs granularity(Node n) {
  return {{"axis", integer_of(n, "axis")}, {"block_size", integer_of(n, "block_size")}};
}

/// Expands a scale or a (float) zero point to one value for every element of x.
Value spread(Node n, Value x, Value scale) {
  Tensor one = Tensor::zeros(DType::i8, {1});
  *one.data<int8_t>() = 1;
  Value ones = apply("ConstantOfShape", {shape_of(x)}, {{"value", one}});
  return apply("DequantizeLinear", {ones, scale}, granularity(n));
}

/// Sums x over the elements that share a scale.
Value gathered(Node n, Value x, Value scale) {
  const int64_t block = integer_of(n, "block_size");
  if (scale.rank() == 0) return sum(x, {}, false);
  const int64_t axis = normal_axis(n, integer_of(n, "axis"), x.rank());
  if (block == 0 && scale.shape()[0].known() && scale.shape()[0].value() == 1)
    return reshape(sum(x, {}, false), Ints{1});
  if (block == 0) {
    Ints others;
    for (int64_t i = 0; i < x.rank(); ++i) {
      if (i != axis) others.push_back(i);
    }
    return others.empty() ? x : sum(x, others, false);
  }
  Value blocks = positions(extent_of(x, axis)) / static_cast<double>(block);
  return apply("steep.GatherGrad", {x, blocks, shape_of(scale)}, {{"axis", axis}});
}

Grads dequantize_vjp(Node n, const Grads& dy) {
  Value scale = n.input(1);
  if (!is_float(scale.dtype())) return {};
  Value ones = expand_like(scalar(n.graph(), 1, scale.dtype()), scale);
  Attrs attrs = n.attrs();
  Value steps = n.input(2) ? apply("DequantizeLinear", {n.input(0), ones, n.input(2)}, attrs)
                           : apply("DequantizeLinear", {n.input(0), ones}, attrs);
  return {Value(), cast_like(gathered(n, dy[0] * steps, scale), scale)};
}

Grads fake_quantize_vjp(Node n, const Grads& dy) {
  Value x = n.input(0), zero = n.input(2);
  const auto type = static_cast<DType>(integer_of(n, "output_dtype"));
  const QuantisedRange range = quantised_range(type);
  Value q = cast(x, DType::f32) / spread(n, x, cast(n.input(1), DType::f32));
  if (is_integer(type)) q = apply("Round", {q});
  if (zero && is_integer(type)) q = q + spread(n, x, cast(zero, DType::f32));
  Value clipped = apply("Or", {less(q, range.low), greater(q, range.high)});
  return {where(clipped, 0, cast_like(dy[0], x))};
}

std::vector<Type> fake_quantize_infer(Node n) {
  return {{result_dtype(n, n.input(1).dtype()), n.input(0).type().shape}};
}

std::vector<Value> fake_quantize_decompose(Node n) {
  Value scale = n.input(1), zero = n.input(2);
  Attrs quantize = n.attrs(), dequantize = granularity(n);
  quantize.erase("dtype");
  dequantize.set("output_dtype", static_cast<int64_t>(n.output(0).dtype()));
  Value q = zero ? apply("QuantizeLinear", {n.input(0), scale, zero}, quantize)
                 : apply("QuantizeLinear", {n.input(0), scale}, quantize);
  return {zero ? apply("DequantizeLinear", {q, scale, zero}, dequantize)
               : apply("DequantizeLinear", {q, scale}, dequantize)};
}

}  // namespace

extern const OpDef kQuantizeLinear = {.name = "QuantizeLinear",
                                      .attributes = {{"axis", 1},
                                                     {"block_size", 0},
                                                     {"output_dtype", 0},
                                                     {"precision", 0},
                                                     {"saturate", 1}},
                                      .stops_gradient = true};
extern const OpDef kDequantizeLinear = {
    .name = "DequantizeLinear",
    .attributes = {{"axis", 1}, {"block_size", 0}, {"output_dtype", 0}},
    .vjp = dequantize_vjp};
/// steep.FakeQuantize(x, scale, zero_point?){as QuantizeLinear, dtype}: QuantizeLinear to
/// `output_dtype`, then DequantizeLinear to `dtype`.
extern const OpDef kSteepFakeQuantize = {
    .name = "steep.FakeQuantize",
    .attributes = {{"axis", 1}, {"block_size", 0}, {"output_dtype", 0}},
    .vjp = fake_quantize_vjp,
    .infer = fake_quantize_infer,
    .decompose = fake_quantize_decompose};

}  // namespace steep
