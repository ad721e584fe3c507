// ai.onnx.preview.training.Gradient: the gradient of a value that other nodes computed.
#include "autodiff/gradient.h"

#include "model/import/handlers.h"
#include "model/read/quote.h"
#include "ops/build.h"
#include "steep/error.h"

namespace steep {

Bindings import_gradient(Importer& importer, FileNode& node) {
  Graph& graph = importer.graph();
  std::vector<std::string> names;  // the names in xs, then those in zs
  size_t count = 0;
  std::string of;
  for (const auto& attribute : node.proto.attribute()) {
    if (attribute.name() == "y") of = attribute.s();
    if (attribute.name() != "xs") continue;
    names.insert(names.begin(), attribute.strings().begin(), attribute.strings().end());
    count = names.size();
  }
  const Binding* y = node.scope.find(of);
  if (y == nullptr || !y->value() || node.inputs.size() < count) {
    throw ModelError({.what = "A Gradient node names a value that does not exist.",
                      .expected = "y, and one input for each of xs and zs",
                      .received = quote(of),
                      .remedy = "Name values that are computed before the node."});
  }
  std::vector<Value> wrt;
  for (size_t i = 0; i < count; ++i) {
    const Binding* x = node.scope.find(names[i]);
    if (x == nullptr || !x->value() || node.inputs[i].value() != x->value()) {
      throw ModelError(
          {.what = "A Gradient node evaluates the gradient at other values than the forward pass.",
           .expected = "the values named by xs as inputs",
           .received = quote(names[i]),
           .remedy = "Feed the model with the values at which to differentiate."});
    }
    wrt.push_back(x->value());
  }
  // Differentiation replaces composite nodes. Outputs are updated then, so make the named values
  // outputs.
  const std::vector<Output> before = graph.outputs();
  std::vector<Binding*> bindings;
  for (auto& [name, binding] : node.scope.names) {
    if (!binding.value() || !binding.value().producer()) continue;
    bindings.push_back(&binding);
    graph.add_output(name, binding.value());
  }
  const std::vector<Value> targets{y->value()};
  std::vector<Value> gradients = add_gradients(graph, targets, {}, wrt, Phase::forward);
  const std::vector<Output>& outputs = graph.outputs();
  for (size_t i = 0; i < bindings.size(); ++i) *bindings[i] = outputs[before.size() + i].value;
  graph.set_outputs({outputs.begin(), outputs.begin() + static_cast<int64_t>(before.size())});
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i]) gradients[i] = zeros_like(wrt[i]);
  }
  return {gradients.begin(), gradients.end()};
}

}  // namespace steep
