#include "model/import/inline.h"

#include <fmt/format.h>
#include <onnx/defs/schema.h>

#include "model/import/handlers.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "ops/onnx_proto.h"
#include "ops/op_def.h"
#include "steep/error.h"

namespace steep {
namespace {

/// In ONNX's function body of Attention a query row without keys has NaN probabilities, which a
/// later node replaces by zeros. The gradient through the softmax would still be NaN. SafeSoftmax
/// has zeros in both, and passes know it. Leaves a body with other value names unchanged.
void take_safe_softmax(onnx::FunctionProto* body) {
  auto made_by = [&](std::string_view name, std::string_view op) -> onnx::NodeProto* {
    for (onnx::NodeProto& n : *body->mutable_node()) {
      if (n.output_size() == 1 && n.output(0) == name && n.op_type() == op) return &n;
    }
    return nullptr;
  };
  onnx::NodeProto* softmax = made_by("AttnWeightSoftmax", "Softmax");
  onnx::NodeProto* guard = made_by("SoftmaxOutSafe", "Where");
  if (softmax == nullptr || guard == nullptr) return;
  softmax->set_op_type("SafeSoftmax");
  softmax->set_domain("steep");
  const std::string probabilities = guard->input(2);
  guard->set_op_type("Identity");
  guard->clear_input();
  guard->add_input(probabilities);
}

}  // namespace

std::optional<Composite> composite_of(const Call& call, const std::string& op,
                                      const std::vector<Value>& in, const Attrs& attrs,
                                      int outputs) {
  if (find_op(op) != nullptr) return std::nullopt;
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(op);
  if (schema == nullptr || (!schema->HasFunction() && !schema->HasContextDependentFunction()))
    return std::nullopt;

  Composite composite;
  onnx::NodeProto* node = &composite.call;
  onnx::FunctionProto* body = &composite.function;
  node->set_name(call.name);
  node->set_op_type(op);
  std::vector<onnx::TypeProto> types;
  for (size_t i = 0; i < in.size(); ++i) {
    node->add_input(in[i] ? fmt::format("in{}", i) : "");
    types.push_back(in[i] ? to_proto(in[i].type()) : onnx::TypeProto());
  }
  for (int i = 0; i < outputs; ++i)
    node->add_output(call.wants(static_cast<size_t>(i)) ? fmt::format("out{}", i) : "");
  for (const auto& [key, value] : attrs) *node->add_attribute() = to_proto(key, value);
  if (schema->HasFunction()) {
    const onnx::FunctionProto* source = schema->GetFunction();
    if (source == nullptr) return std::nullopt;
    *body = *source;
  } else {
    const onnx::FunctionBodyBuildContextImpl context(*node, types);
    if (!schema->BuildContextDependentFunction(context, *body)) return std::nullopt;
    if (op == "Attention") take_safe_softmax(body);
  }
  // Inside the body, attributes that the call leaves out have the schema's defaults.
  for (const auto& [key, attribute] : schema->attributes()) {
    if (!attribute.default_value.name().empty() && !attrs.has(key))
      *node->add_attribute() = attribute.default_value;
  }
  return composite;
}

std::vector<Binding> inline_function(Importer& importer, const FunctionCall& call) {
  const onnx::FunctionProto& function = call.function;
  CallFrame inner{.opset = default_opset(function.opset_import()),
                  .prefix = call.prefix,
                  .function = &function,
                  .caller = &call.frame,
                  .depth = call.frame.depth + 1};
  for (const CallFrame* f = &call.frame; f != nullptr; f = f->caller) {
    if (f->function == &function) {
      throw ModelError({.what = "A function of the model calls itself.",
                        .received = quote(function.name()),
                        .remedy = "Export the model again; ONNX functions must not be recursive."});
    }
  }
  if (inner.depth > importer.limits().max_depth) {
    throw ModelError({.what = "The model's functions are nested too deep.",
                      .expected = fmt::format("at most {} calls within one another",
                                              importer.limits().max_depth),
                      .remedy = "If this is intended, raise Limits::max_depth."});
  }
  if (call.inputs.size() > static_cast<size_t>(function.input_size())) {
    throw ModelError({.what = "A function is called with too many inputs.",
                      .expected = fmt::format("at most {}", function.input_size()),
                      .received = fmt::format("{}", call.inputs.size()),
                      .remedy = "Export the model again."});
  }
  for (const auto& attribute : function.attribute_proto())
    inner.arguments[attribute.name()] = &attribute;
  for (const auto& attribute : call.node.attribute()) {
    if (const auto* value = call.frame.resolve(attribute))
      inner.arguments[attribute.name()] = value;
  }
  const Weights::InBody in_function(importer.weights(), call.node, nullptr);
  NameScope scope{.outer = call.around};
  for (int i = 0; i < function.input_size(); ++i) {
    const auto at = static_cast<size_t>(i);
    scope.names[function.input(i)] = at < call.inputs.size() ? call.inputs[at] : Binding();
  }
  importer.import_nodes(function.node(), scope, inner);
  std::vector<Binding> results;
  for (const auto& name : function.output()) {
    const Binding* b = scope.find(name);
    results.push_back(b != nullptr ? *b : Binding());
  }
  return results;
}

// SequenceMap, FlexAttention: ONNX defines them as functions into which it copies their bodies. The
// bodies may read values of the enclosing graph.
Bindings import_with_bodies(Importer& importer, FileNode& node) {
  const onnx::NodeProto& proto = node.proto;
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(proto.op_type(), proto.domain());
  onnx::NodeProto call = proto;
  onnx::FunctionProto function;
  std::vector<Binding> values;
  std::vector<onnx::TypeProto> types;
  for (const Binding& b : node.inputs) {
    values.emplace_back(b ? importer.materialise(b) : Value());
    types.push_back(b ? to_proto(values.back().value().type()) : onnx::TypeProto());
  }
  call.clear_attribute();
  for (const auto& attribute : proto.attribute()) {
    const onnx::AttributeProto* value = node.frame.resolve(attribute);
    if (value == nullptr) continue;
    onnx::AttributeProto& copy = *call.add_attribute();
    copy = *value;
    copy.set_name(attribute.name());
  }
  if (proto.op_type() == "SequenceMap") node.body("body");
  const onnx::FunctionBodyBuildContextImpl context(call, types);
  if (schema == nullptr || !schema->BuildContextDependentFunction(context, function)) {
    throw ModelError({.what = "An operator with bodies cannot be expanded.",
                      .remedy = "Export the model again; its file does not follow the ONNX "
                                "standard."});
  }
  function.clear_opset_import();
  auto* import = function.add_opset_import();
  import->set_version(node.frame.opset);
  return inline_function(importer, {.node = call,
                                    .function = function,
                                    .inputs = std::move(values),
                                    .frame = node.frame,
                                    .prefix = node.name() + "/",
                                    .around = &node.scope});
}

}  // namespace steep
