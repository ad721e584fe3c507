// If: a branch on a constant condition is inlined; otherwise both branches become bodies.

#include "model/import/body.h"
#include "model/import/handlers.h"
#include "model/read/node_names.h"
#include "ops/build.h"
#include "ops/steep_types.h"
#include "steep/error.h"

namespace steep {
namespace {

Bindings inline_branch(Importer& importer, const FileNode& node, const char* attribute) {
  const onnx::GraphProto& branch = node.body(attribute);
  const Weights::InBody in_body(importer.weights(), node.proto, attribute);
  NameScope inner{.outer = &node.scope};
  importer.add_initializers(branch, inner, node.frame.prefix);
  importer.import_nodes(branch.node(), inner, node.frame);
  Bindings results;
  for (const auto& output : branch.output()) {
    const Binding* b = inner.find(output.name());
    results.push_back(b != nullptr ? importer.here(*b) : Binding());
  }
  return results;
}

struct Branch {
  std::shared_ptr<Graph> graph;
  std::vector<Value> captured;
};

Branch import_branch(Importer& importer, const FileNode& node, const char* attribute) {
  const onnx::GraphProto& branch = node.body(attribute);
  const Weights::InBody in_body(importer.weights(), node.proto, attribute);
  OpenBody body(importer);
  NameScope inner{.outer = &node.scope};
  importer.add_initializers(branch, inner, "");
  importer.import_nodes(branch.node(), inner, node.frame);
  body.add_outputs(branch, inner);
  return {body.graph(), body.captured(0)};
}

Value condition_of(const FileNode& node) {
  const Value condition = node.inputs.empty() ? Value() : node.inputs[0].value();
  if (condition && condition.dtype() == DType::boolean && condition.type().kind == Kind::tensor)
    return condition;
  throw ModelError({.what = "An If has no condition.",
                    .expected = "a bool tensor of one element",
                    .received = condition ? to_string(condition.type()) : "nothing",
                    .remedy = "Export the model again."});
}

}  // namespace

Bindings import_if(Importer& importer, FileNode& node) {
  const Value condition = condition_of(node);
  for (const char* attribute : {"then_branch", "else_branch"}) node.body(attribute);
  const auto ints = known_ints(condition);
  if (ints && ints->size() == 1)
    return inline_branch(importer, node, (*ints)[0] != 0 ? "then_branch" : "else_branch");

  const Branch a = import_branch(importer, node, "then_branch");
  const Branch b = import_branch(importer, node, "else_branch");
  const std::vector<Output>&x = a.graph->outputs(), &y = b.graph->outputs();
  if (x.size() != y.size()) {
    throw ModelError({.what = "The branches of an If do not match.",
                      .expected = "as many outputs of either branch",
                      .remedy = "Export the model again; its file does not follow the ONNX "
                                "standard."});
  }
  std::vector<Value> inputs{condition};
  for (const auto* captured : {&a.captured, &b.captured})
    inputs.insert(inputs.end(), captured->begin(), captured->end());
  const Node n = importer.graph().add_node(
      "If", inputs, static_cast<int>(x.size()),
      {{"then_branch", Body(a.graph)}, {"else_branch", Body(b.graph)}}, node.name());
  Bindings results;
  for (size_t i = 0; i < x.size(); ++i) {
    const Type &one = x[i].value.type(), &other = y[i].value.type();
    require_same_element(one, other, "The branches of an If differ in an output's element type.");
    const Value result = n.output(static_cast<int>(i));
    importer.graph().set_type(result, either(one, other));
    results.emplace_back(result);
  }
  return results;
}

}  // namespace steep
