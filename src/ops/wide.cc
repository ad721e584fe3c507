#include "ops/wide.h"

#include <algorithm>
#include <string_view>

#include "ops/build.h"
#include "ops/offered.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Operators whose rules and decompositions lose nothing in 16 bits: they move elements, choose
/// between them, write a sum as one node, or are products, whose kernels sum in float32.
constexpr std::string_view kAnyWidth[] = {
    "Cast",
    "CastLike",
    "Concat",
    "Conv",
    "ConvTranspose",
    "DepthToSpace",
    "DequantizeLinear",
    "DynamicQuantizeLinear",
    "Expand",
    "Gather",
    "GatherElements",
    "GatherND",
    "MatMul",
    "Neg",
    "Pad",
    "QLinearConv",
    "QLinearMatMul",
    "ReduceSum",
    "Relu",
    "ReverseSequence",
    "Slice",
    "SpaceToDepth",
    "Split",
    "TensorScatter",
    "Transpose",
    "Trilu",
    "steep.Assign",
    "steep.Claimed",
    "steep.ConvGradInput",
    "steep.ConvGradWeight",
    "steep.Dropout",
    "steep.DropoutMask",
    "steep.FakeQuantize",
    "steep.Fused",
    "steep.GlobalNorm",
    "steep.SliceGrad",
    "steep.StopGradient",
    "steep.SumTo",
    "steep.WithGradient",
};
static_assert(std::is_sorted(std::begin(kAnyWidth), std::end(kAnyWidth)));

/// Operators whose rules read a result for which 16 bits have too few digits or too small a range.
/// The result is recomputed in float32.
constexpr std::string_view kComputedAnew[] = {"LogSoftmax", "ReduceL2", "ReduceLogSumExp",
                                              "steep.SoftmaxCrossEntropy", "ReduceProd"};

template <size_t n>
bool is_among(const std::string_view (&names)[n], std::string_view op) {
  return std::find(std::begin(names), std::end(names), op) != std::end(names);
}

bool is_half(Value v) { return v && v.type().kind == Kind::tensor && is_half(v.dtype()); }

Value wide(Value v) { return is_half(v) ? cast(v, DType::f32) : v; }

/// `v` in the dtype of `like`. If `v` is a float32 cast of a 16-bit value, returns that value.
Value narrow(Value v, Value like) {
  const Node maker = v.producer();
  if (maker && maker.op() == "Cast" && maker.input(0).dtype() == like.dtype() &&
      is_half(like.dtype()))
    return maker.input(0);
  return cast_like(v, like);
}

/// A node of the same operator with operands in float32.
Node wide_node(Node n) {
  Graph& g = n.graph();
  std::vector<Value> inputs;
  for (int i = 0; i < n.input_count(); ++i) inputs.push_back(wide(n.input(i)));
  Attrs attrs = n.attrs();
  const auto dtype = static_cast<DType>(attrs.integer("dtype", 0));
  if (n.op().starts_with("steep.") && is_half(dtype))
    attrs.set("dtype", static_cast<int64_t>(DType::f32));
  const std::vector<Value> results = apply_n(n.op(), inputs, n.output_count(), std::move(attrs));
  for (int i = 0; i < n.output_count(); ++i) {
    if (!n.output(i)) continue;
    Type type = n.output(i).type();
    type.dtype = results[static_cast<size_t>(i)].dtype();
    if (type.shape) g.set_type(results[static_cast<size_t>(i)], type);
  }
  return results[0].producer();
}

/// The gradients that the rule gives for float16 or bfloat16 operands, computed in float32.
Grads wide_gradients(Node n, const Grads& dy, const OpDef& def, Differentiate differentiate) {
  Graph& g = n.graph();
  const Node twin = wide_node(n);
  Grads seeds;
  for (size_t i = 0; i < dy.size(); ++i)
    seeds.push_back(dy[i] ? cast_like(dy[i], twin.output(static_cast<int>(i))) : Value());
  Grads dx = def.vjp(twin, seeds, differentiate);
  if (is_among(kComputedAnew, n.op())) return dx;
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = twin.output(i);
    if (!n.output(i)) continue;
    const Value narrow = cast_like(n.output(i), y);
    g.replace_uses(y, narrow);
    std::replace(dx.begin(), dx.end(), y, narrow);
  }
  return dx;
}

}  // namespace

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

bool needs_float32(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr || def->view || def->dynamic || find_offered(n.op()) ||
      is_among(kAnyWidth, n.op()))
    return false;
  bool any = false;
  for (int i = 0; i < n.input_count(); ++i) any = any || is_half(n.input(i));
  for (int i = 0; i < n.output_count(); ++i) any = any || is_half(n.output(i));
  return any;
}

std::vector<Value> in_float32(Node n) {
  const Node wide = wide_node(n);
  std::vector<Value> results;
  for (int i = 0; i < n.output_count(); ++i)
    results.push_back(n.output(i) ? cast_like(wide.output(i), n.output(i)) : Value());
  return results;
}

Grads apply_rule(Node n, const Grads& dy, Differentiate differentiate) {
  const OpDef& def = *find_op(n.op());
  return needs_float32(n) ? wide_gradients(n, dy, def, differentiate)
                          : def.vjp(n, dy, differentiate);
}

Value gradient_for(Node n, Value dx, Value x) {
  const DType dtype = is_half(x) && needs_float32(n) ? DType::f32 : x.dtype();
  if (dx.dtype() != dtype) {
    throw InternalError({.what = "A gradient rule returned a gradient of another dtype.",
                         .node = n.name(),
                         .op = n.op(),
                         .expected = to_string(Type{dtype, x.type().shape}),
                         .received = to_string(dx.type())});
  }
  return narrow(sum_to_like(dx, x), x);
}

}  // namespace steep
