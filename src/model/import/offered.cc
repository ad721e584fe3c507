// Operators that providers offer (ops/offered.h): a call becomes a node, and what the provider says
// that it means the node's body. Which of the two runs is decided where devices are known.
#include "ops/offered.h"

#include <fmt/format.h>

#include "model/custom/functions.h"
#include "model/import/importer.h"
#include "model/read/attributes.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {

std::vector<Binding> Importer::import_offered(const onnx::NodeProto& node,
                                              const onnx::FunctionProto& function,
                                              const std::vector<Binding>& inputs,
                                              const Frame& frame) {
  const std::string name = frame.prefix + display_name(node);
  const std::string op = qualified(function);
  auto require_tensor = [&](const Binding& b, const char* what) {
    if (!b || (b.items() == nullptr && b.value().type().kind == Kind::tensor)) return;
    throw ModelError({.what = "An operator of a provider takes and returns tensors only.",
                      .node = quote(name),
                      .op = quote(op),
                      .expected = "a tensor",
                      .received = fmt::format("a sequence or optional as {}", what),
                      .remedy = "Export the model again; its types do not fit."});
  };
  std::vector<Value> operands;
  for (const Binding& b : inputs) {
    require_tensor(b, "an operand");
    operands.push_back(b.value());
  }

  Attrs attrs;
  auto set = [&](const onnx::AttributeProto& named, const onnx::AttributeProto& value) {
    attrs.set(named.name(), attr_from_onnx(value, name, *model_.tensors));
  };
  for (const auto& attribute : function.attribute_proto()) set(attribute, attribute);
  for (const auto& attribute : node.attribute()) {
    if (const auto* given = resolve(attribute, frame)) set(attribute, *given);
  }

  if (function.node_size() > 0) {
    const OpenBody body(*this);
    std::vector<Binding> inner;
    for (Value x : operands) {
      if (!x) {
        inner.emplace_back();
        continue;
      }
      const Value input = body.graph->add_input(x.name(), named_extents(x));
      if (const Shape* contents = x.graph().contents(x)) body.graph->set_contents(input, *contents);
      // What is known here already, the body may ask for: an axis, a shape.
      inner.emplace_back(constant(x) != nullptr && !is_float(x.dtype())
                             ? body.graph->add_constant(*x.tensor(), x.name())
                             : input);
    }
    const size_t count = body.graph->inputs().size();
    bool whole = true;
    for (const Binding& y : import_call(node, function, inner, frame, name + "/")) {
      require_tensor(y, "a result");
      whole = whole && y;
      if (y) body.graph->add_output("", y.value());
    }
    if (!whole || body.graph->inputs().size() != count) {
      throw ProviderError({.what = "The decomposition of a provider's operator is not valid.",
                           .node = quote(name),
                           .op = quote(op),
                           .expected = "every result, from operands and attributes alone",
                           .received = whole ? "one that draws random numbers" : "fewer results",
                           .remedy = "Ask the plug-in's author."});
    }
    body.graph->prune();
    attrs.set(kParts, Body(body.graph));
  }
  const Graph::Scope scope(*graph_, Phase::forward, name);
  const Node made = graph_->add_node(op, operands, function.output_size(), std::move(attrs), name);
  infer_types(made);
  std::vector<Binding> results;
  for (int i = 0; i < made.output_count(); ++i) results.emplace_back(made.output(i));
  return results;
}

}  // namespace steep
