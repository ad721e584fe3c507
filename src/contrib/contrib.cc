#include "contrib/contrib.h"

#include <fmt/format.h>
#include <onnx/defs/function.h>

#include <algorithm>
#include <stdexcept>

#include "steep/error.h"

namespace steep {

// One line per operator, as in ops/registry.cc.
// clang-format off
#define STEEP_CONTRIB(X) \
  X(Attention) \
  X(BiasAdd) \
  X(BiasDropout) \
  X(BiasGelu) \
  X(BiasSoftmax) \
  X(BiasSplitGelu) \
  X(BitmaskBiasDropout) \
  X(BitmaskDropout) \
  X(CDist) \
  X(ConvTransposeWithDynamicPads) \
  X(CropAndResize) \
  X(EmbedLayerNormalization) \
  X(ExpandDims) \
  X(FastGelu) \
  X(FusedConv) \
  X(FusedGemm) \
  X(FusedMatMul) \
  X(FusedMatMulActivation) \
  X(GRUTraining) \
  X(GatedAdd) \
  X(GatedRMSNorm) \
  X(GatherND) \
  X(Gelu) \
  X(GemmFastGelu) \
  X(GridSample) \
  X(GroupNorm) \
  X(GroupQueryAttention) \
  X(Inverse) \
  X(Irfft) \
  X(LSTMTraining) \
  X(LayerNormalization) \
  X(LinearAttentionGate) \
  X(MatMulNBits) \
  X(MultiHeadAttention) \
  X(NhwcConv) \
  X(NhwcFusedConv) \
  X(Pad) \
  X(QuickGelu) \
  X(Range) \
  X(RelativePositionBias) \
  X(Rfft) \
  X(RotaryEmbedding) \
  X(SampleOp) \
  X(ScaledSiLU) \
  X(SimplifiedLayerNormalization) \
  X(SkipGroupNorm) \
  X(SkipLayerNormalization) \
  X(SkipSimplifiedLayerNormalization) \
  X(SoftmaxCrossEntropyLossInternal) \
  X(SwiGLU) \
  X(TransposeMatMul) \
  X(Trilu) \
  X(UnfoldTensor) \
  X(Unique)
// clang-format on

#define STEEP_DECLARE(Op) extern const ContribOp kContrib##Op;
STEEP_CONTRIB(STEEP_DECLARE)
#undef STEEP_DECLARE

std::span<const ContribOp* const> contrib_ops() {
#define STEEP_ADDRESS(Op) &kContrib##Op,
  static const ContribOp* const ops[] = {STEEP_CONTRIB(STEEP_ADDRESS)};
#undef STEEP_ADDRESS
  return ops;
}

const ContribOp* find_contrib(std::string_view name) {
  const auto ops = contrib_ops();
  const auto found =
      std::find_if(ops.begin(), ops.end(), [&](const ContribOp* op) { return op->name == name; });
  return found == ops.end() ? nullptr : *found;
}

// --- ContribCall ---------------------------------------------------------------------------------

namespace {

template <typename T>
const T& declared(const ContribOp& op, std::string_view name) {
  for (const Attribute& attribute : op.attributes) {
    if (attribute.name == name) return std::get<T>(attribute.otherwise);
  }
  throw InternalError({.what = "An operator declares no such attribute.",
                       .op = std::string(op.name),
                       .received = std::string(name)});
}

bool is_optional(std::string_view input) { return input.ends_with('?'); }

std::string_view name_of_input(std::string_view input) {
  return is_optional(input) ? input.substr(0, input.size() - 1) : input;
}

}  // namespace

int64_t ContribCall::integer(std::string_view name) const {
  return attrs.integer(name, declared<int64_t>(op, name));
}

bool ContribCall::flag(std::string_view name) const {
  const int64_t value = integer(name);
  if (value == 0 || value == 1) return value == 1;
  fail("An attribute is out of range.", fmt::format("{} of 0 or 1", name),
       fmt::format("{} = {}", name, value), "Export the model again.");
}

double ContribCall::real(std::string_view name) const {
  return attrs.real(name, declared<double>(op, name));
}

std::string ContribCall::text(std::string_view name) const {
  return attrs.string(name, declared<std::string_view>(op, name));
}

size_t ContribCall::rank(size_t input) const {
  if (inputs.at(input).shape) return inputs[input].shape->size();
  fail("The rank of an input must be known.",
       fmt::format("a shape for {}", name_of_input(op.inputs.at(input))), to_string(inputs[input]),
       "Give the model's inputs shapes; dimensions may be symbols.");
}

int64_t ContribCall::extent(size_t input, int64_t axis) const {
  const auto dims = static_cast<int64_t>(rank(input));
  const int64_t at = axis < 0 ? axis + dims : axis;
  const std::string_view name = name_of_input(op.inputs.at(input));
  if (at < 0 || at >= dims) {
    fail("An input has another rank.", fmt::format("an axis {} of {}", axis, name),
         to_string(inputs[input]), "Export the model again.");
  }
  const Dim& dim = (*inputs[input].shape)[static_cast<size_t>(at)];
  if (dim.known() && dim.value() <= kFar) return dim.value();
  fail("An extent of an input must be known.",
       fmt::format("a number up to {} on axis {} of {}", kFar, axis, name),
       to_string(inputs[input]), "Fix this dimension in the model.");
}

void ContribCall::fail(std::string what, std::string expected, std::string received,
                       std::string remedy) const {
  throw ModelError({.what = std::move(what),
                    .node = node,
                    .op = fmt::format("{}.{}", kContribDomain, op.name),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = std::move(remedy)});
}

// --- ContribBody ---------------------------------------------------------------------------------

void ContribBody::add(const std::string& nodes) {
  try {
    onnx::FunctionBuilder(*function_).Add(nodes.c_str());
  } catch (const std::logic_error& e) {  // cannot depend on the file: the text is Steep's
    throw InternalError({.what = "A function's text cannot be parsed.", .received = e.what()});
  }
}

void ContribBody::real(const std::string& attribute, double value) {
  onnx::FunctionBuilder(*function_).AddAttributeToNode(attribute, static_cast<float>(value));
}

void ContribBody::scalar(const std::string& name, double value, const std::string& like) {
  onnx::FunctionBuilder(*function_).Const(name + "_wide", value);
  add(fmt::format("{0} = CastLike ({0}_wide, {1})", name, like));
}

void ContribBody::ints(const std::string& name, const Ints& values) {
  onnx::FunctionBuilder(*function_).Const(name, values);
}

// --- functions -----------------------------------------------------------------------------------

namespace {

/// Throws ModelError unless the call fits the operator's declaration.
void check(const ContribCall& c) {
  constexpr const char* kExportAgain = "Export the model again.";
  const ContribOp& op = c.op;
  if (c.inputs.size() > op.inputs.size()) {
    c.fail("A node has too many inputs.", fmt::format("at most {}", op.inputs.size()),
           fmt::format("{}", c.inputs.size()), kExportAgain);
  }
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (c.has(i) || is_optional(op.inputs[i])) continue;
    c.fail("A node lacks an input.", fmt::format("input {}, {}", i, op.inputs[i]), "none",
           kExportAgain);
  }
  if (c.wanted.size() > static_cast<size_t>(op.outputs)) {
    c.fail("A node has too many outputs.", fmt::format("at most {}", op.outputs),
           fmt::format("{}", c.wanted.size()), kExportAgain);
  }
  for (const auto& [name, value] : c.attrs) {
    const bool declared =
        std::any_of(op.attributes.begin(), op.attributes.end(),
                    [&name = name](const Attribute& a) { return a.name == name; }) ||
        std::find(op.lists.begin(), op.lists.end(), name) != op.lists.end();
    if (declared) continue;
    c.fail("A node has an attribute that Steep does not know.", "an attribute of the operator",
           name, "Export the model without it.");
  }
}

}  // namespace

onnx::FunctionProto contrib_function(const ContribCall& call) {
  check(call);
  onnx::FunctionProto f;
  f.set_domain(std::string(kContribDomain));
  f.set_name(std::string(call.op.name));
  f.add_opset_import()->set_version(ContribBody::kOpset);
  for (const std::string_view input : call.op.inputs) {
    f.add_input(std::string(name_of_input(input)));
  }
  ContribBody body(&f);
  for (std::string& result : call.op.build(call, body)) f.add_output(std::move(result));
  return f;
}

}  // namespace steep
