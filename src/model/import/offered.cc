// Operators that providers offer (ops/offered.h): a call becomes a node whose body is the
// provider's decomposition. Which of the two runs is decided later, when devices are known.
#include "ops/offered.h"

#include <fmt/format.h>

#include "model/custom/functions.h"
#include "model/import/body.h"
#include "model/import/inline.h"
#include "model/read/attributes.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {

namespace {

void require_tensor(const Binding& b, const char* what, const FileNode& node,
                    const std::string& op) {
  if (!b || (b.items() == nullptr && b.value().type().kind == Kind::tensor)) return;
  throw ModelError({.what = "An operator of a provider takes and returns tensors only.",
                    .node = quote(node.name()),
                    .op = quote(op),
                    .expected = "a tensor",
                    .received = fmt::format("a sequence or optional as {}", what),
                    .remedy = "Export the model again; its types do not fit."});
}

Attrs attributes_of(const Importer& importer, const FileNode& node,
                    const onnx::FunctionProto& function) {
  const std::string name = node.name();
  Attrs attrs;
  auto set = [&](const onnx::AttributeProto& key, const onnx::AttributeProto& value) {
    attrs.set(key.name(), attr_from_onnx(value, name, *importer.model().tensors));
  };
  for (const auto& attribute : function.attribute_proto()) set(attribute, attribute);
  for (const auto& attribute : node.proto.attribute()) {
    if (const auto* argument = node.frame.resolve(attribute)) set(attribute, *argument);
  }
  return attrs;
}

/// The operands as values of the body.
std::vector<Binding> operands_in(Importer& importer, Graph& parts,
                                 const std::vector<Value>& operands) {
  std::vector<Binding> inner;
  for (Value x : operands) {
    if (!x) {
      inner.emplace_back();
      continue;
    }
    const Value input = parts.add_input(x.name(), importer.named_extents(x));
    if (const Shape* contents = x.graph().contents(x)) parts.set_contents(input, *contents);
    // Constants stay constants in the body, which may need their values: an axis, a shape.
    inner.emplace_back(constant(x) != nullptr && !is_float(x.dtype())
                           ? parts.add_constant(*x.tensor(), x.name())
                           : input);
  }
  return inner;
}

/// The decomposition of the operator, from the provider's function.
Body body_of(Importer& importer, const FileNode& node, const onnx::FunctionProto& function,
             const std::vector<Value>& operands) {
  const std::string name = node.name();
  const std::string op = qualified(function);
  const OpenBody body(importer);
  Graph& parts = *body.graph();
  std::vector<Binding> inner = operands_in(importer, parts, operands);
  const size_t count = parts.inputs().size();
  bool whole = true;
  for (const Binding& y : inline_function(importer, {.node = node.proto,
                                                    .function = function,
                                                    .inputs = std::move(inner),
                                                    .frame = node.frame,
                                                    .prefix = name + "/"})) {
    require_tensor(y, "a result", node, op);
    whole = whole && y;
    if (y) parts.add_output("", y.value());
  }
  if (!whole || parts.inputs().size() != count) {
    throw ProviderError({.what = "The decomposition of a provider's operator is not valid.",
                         .node = quote(name),
                         .op = quote(op),
                         .expected = "every result, from operands and attributes alone",
                         .received = whole ? "one that draws random numbers" : "fewer results",
                         .remedy = "Ask the plug-in's author."});
  }
  parts.prune();
  return Body(body.graph());
}

}  // namespace

std::vector<Binding> call_offered(Importer& importer, const FileNode& node,
                                  const onnx::FunctionProto& function) {
  const std::string name = node.name();
  const std::string op = qualified(function);
  std::vector<Value> operands;
  for (const Binding& b : node.inputs) {
    require_tensor(b, "an operand", node, op);
    operands.push_back(b.value());
  }
  Attrs attrs = attributes_of(importer, node, function);
  if (function.node_size() > 0) attrs.set(kParts, body_of(importer, node, function, operands));
  const Graph::Scope scope(importer.graph(), Phase::forward, name);
  const Node offer =
      importer.graph().add_node(op, operands, function.output_size(), std::move(attrs), name);
  infer_types(offer);
  std::vector<Binding> results;
  for (int i = 0; i < offer.output_count(); ++i) results.emplace_back(offer.output(i));
  return results;
}

}  // namespace steep
