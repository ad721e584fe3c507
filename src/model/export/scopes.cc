#include "model/export/scopes.h"

#include <fmt/format.h>

#include <unordered_map>

#include "model/export/node_proto.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"

namespace steep {
namespace {

void add_names(const onnx::GraphProto& graph, std::unordered_set<std::string>& names) {
  for (const auto& tensor : graph.initializer()) names.insert(tensor.name());
  for (const auto& input : graph.input()) names.insert(input.name());
  for (const auto& output : graph.output()) names.insert(output.name());
  for (const auto& node : graph.node()) {
    names.insert(node.input().begin(), node.input().end());
    names.insert(node.output().begin(), node.output().end());
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) add_names(attribute.g(), names);
      for (const auto& body : attribute.graphs()) add_names(body, names);
    }
  }
}

}  // namespace

const onnx::TensorProto* constant_of(const onnx::NodeProto& node) {
  if (!is(node, "Constant") || node.output_size() != 1) return nullptr;
  const auto* value = find_attribute(node, "value");
  return value != nullptr && value->has_t() ? &value->t() : nullptr;
}

std::unordered_set<std::string> all_names(const onnx::GraphProto& graph) {
  std::unordered_set<std::string> names;
  add_names(graph, names);
  return names;
}

struct Scopes::Scope {
  const Scope* outer = nullptr;
  std::unordered_map<std::string, int> ids{};

  int find(const std::string& name) const {
    for (const Scope* scope = this; scope != nullptr && !name.empty(); scope = scope->outer) {
      if (const auto found = scope->ids.find(name); found != scope->ids.end()) return found->second;
    }
    return -1;
  }
};

Scopes::Scopes(const onnx::GraphProto& graph, const BodyNames& names) : names_(names) {
  add(graph, nullptr, "", "is an output of the model");
}

void Scopes::add(const onnx::GraphProto& graph, const Scope* outer, const std::string& path,
                 const std::string& outputs) {
  Scope scope{outer};
  define_all(graph, scope, path);
  for (const auto& node : graph.node()) add_node(node, scope, path);
  for (const auto& output : graph.output()) {
    const int id = scope.find(output.name());
    if (id >= 0) values_[static_cast<size_t>(id)].why_output = outputs;
  }
}

void Scopes::define_all(const onnx::GraphProto& graph, Scope& scope, const std::string& path) {
  const auto define = [&](const std::string& name) {
    const auto [found, added] = scope.ids.emplace(name, static_cast<int>(values_.size()));
    if (added) values_.emplace_back();
    return found->second;
  };
  const auto hold = [&](const std::string& name, const onnx::TensorProto& tensor) -> Value& {
    const int id = define(name);
    Value& value = values_[static_cast<size_t>(id)];
    if (value.tensor == nullptr) tensors_.push_back(id);
    value.tensor = &tensor;
    value.name = path.empty() ? name : names_.of(path, name);
    return value;
  };
  for (const auto& tensor : graph.initializer())
    hold(tensor.name(), tensor).initializer = path.empty();
  for (const auto& input : graph.input()) define(input.name());
  for (const auto& node : graph.node()) {
    for (const std::string& output : node.output()) define(output);
    const auto* tensor = constant_of(node);
    if (tensor == nullptr || values_[static_cast<size_t>(define(node.output(0)))].tensor != nullptr)
      continue;
    hold(node.output(0), *tensor);
  }
}

void Scopes::add_node(const onnx::NodeProto& node, const Scope& scope, const std::string& path) {
  const auto number = static_cast<int>(nodes_.size());
  Node& added = nodes_.emplace_back(Node{&node});
  for (int i = 0; i < node.input_size(); ++i) {
    const int id = scope.find(node.input(i));
    added.inputs.push_back(id);
    if (id >= 0) values_[static_cast<size_t>(id)].readers.push_back({number, i});
  }
  for (const std::string& output : node.output()) added.outputs.push_back(scope.find(output));
  const auto add_body = [&](const onnx::GraphProto& body, const std::string& attribute) {
    add(body, &scope, path + display_name(node) + "/" + attribute + "/",
        fmt::format("is an output of a body of '{}' ({})", quote(display_name(node)),
                    quote(node.op_type())));
  };
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) add_body(attribute.g(), attribute.name());
    for (const auto& body : attribute.graphs()) add_body(body, attribute.name());
  }
}

}  // namespace steep
