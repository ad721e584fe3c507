#include "model/custom/functions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Imports = google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>;
using Visit = std::function<void(const onnx::NodeProto&)>;

struct Store {
  std::mutex mutex;
  std::shared_ptr<const CustomFunctions> now = std::make_shared<const CustomFunctions>();
};

Store& store() {
  static Store* const store = new Store;  // never destroyed: other threads may still use it
  return *store;
}

void each_node(const Nodes& nodes, const Visit& visit) {
  for (const auto& node : nodes) {
    visit(node);
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) each_node(attribute.g().node(), visit);
      for (const auto& graph : attribute.graphs()) each_node(graph.node(), visit);
    }
  }
}

/// Renames values to v0, v1, … in order of appearance, and removes the names of nodes.
class Renamer {
 public:
  void rename(onnx::FunctionProto* f) {
    f->clear_doc_string();
    f->clear_value_info();
    f->clear_metadata_props();
    if (f->overload().empty()) f->clear_overload();
    for (auto& name : *f->mutable_input()) rename(&name);
    rename(f->mutable_node());
    for (auto& name : *f->mutable_output()) rename(&name);
  }

 private:
  void rename(std::string* name) {
    if (name->empty()) return;
    *name = names_.try_emplace(*name, fmt::format("v{}", names_.size())).first->second;
  }

  void rename(Nodes* nodes) {
    for (auto& node : *nodes) {
      node.clear_name();
      // Normalise fields in which an empty text means the same as an absent one.
      if (node.domain().empty() || node.domain() == "ai.onnx") node.clear_domain();
      if (node.overload().empty()) node.clear_overload();
      node.clear_doc_string();
      node.clear_metadata_props();
      for (auto& name : *node.mutable_input()) rename(&name);
      for (auto& attribute : *node.mutable_attribute()) {
        attribute.clear_doc_string();
        if (attribute.has_g()) rename(attribute.mutable_g());
        for (auto& graph : *attribute.mutable_graphs()) rename(&graph);
      }
      for (auto& name : *node.mutable_output()) rename(&name);
    }
  }

  void rename(onnx::GraphProto* g) {
    g->clear_name();
    g->clear_doc_string();
    g->clear_value_info();
    for (auto& value : *g->mutable_input()) rename(value.mutable_name());
    for (auto& tensor : *g->mutable_initializer()) rename(tensor.mutable_name());
    rename(g->mutable_node());
    for (auto& value : *g->mutable_output()) rename(value.mutable_name());
  }

  std::unordered_map<std::string, std::string> names_;
};

[[noreturn]] void refuse_call(const onnx::NodeProto& node, const onnx::FunctionProto& f,
                              std::string what, std::string expected, std::string received) {
  throw ModelError({.what = std::move(what),
                    .node = quote(display_name(node)),
                    .op = quote(qualified(f)),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = "Change the node so that it matches the registered function, or "
                              "register another function."});
}

/// Throws unless the call fits the function. Missing inputs are allowed: the body has to handle
/// them.
void check_call(const onnx::NodeProto& node, const onnx::FunctionProto& f) {
  if (node.input_size() > f.input_size()) {
    refuse_call(node, f, "A function is called with too many inputs.",
                fmt::format("at most {}", f.input_size()), fmt::format("{}", node.input_size()));
  }
  if (node.output_size() > f.output_size()) {
    refuse_call(node, f, "A function is asked for too many outputs.",
                fmt::format("at most {}", f.output_size()), fmt::format("{}", node.output_size()));
  }
  const std::vector<std::string> names = attribute_names(f);
  std::set<std::string> attributes;
  for (const auto& attribute : node.attribute()) {
    attributes.insert(attribute.name());
    if (std::find(names.begin(), names.end(), attribute.name()) != names.end()) continue;
    refuse_call(node, f, "A function is given an attribute that it does not have.",
                names.empty() ? "none" : quote(fmt::format("{}", fmt::join(names, ", "))),
                quote(attribute.name()));
  }
  for (const auto& name : f.attribute()) {
    if (attributes.count(name) != 0) continue;
    refuse_call(node, f, "A function lacks an attribute that has no default.", quote(name),
                "no attribute of that name");
  }
}

/// Throws when the model imports a version of the domain before the operator's.
void check_version(const onnx::NodeProto& node, const CustomOp& op, const Imports& imports) {
  for (const auto& import : imports) {
    if (import.domain() != node.domain() || import.version() >= op.since) continue;
    refuse_call(node, op.body, "The model imports a version of the domain before the operator's.",
                fmt::format("version {} or later of \"{}\"", op.since, quote(node.domain())),
                fmt::format("{}", import.version()));
  }
}

class Adder {
 public:
  Adder(onnx::ModelProto* model, const CustomFunctions& own) : model_(model), own_(own) {
    for (const auto& f : model->functions()) there_.emplace(function_id(f), &f);
  }

  std::unordered_map<std::string, GradientCall> add() {
    look_at(model_->graph().node(), model_->opset_import());
    // Added functions may call further functions, so the list grows during this loop.
    for (int i = 0; i < model_->functions_size(); ++i) {
      const onnx::FunctionProto f = model_->functions(i);
      look_at(f.node(), f.opset_import());
    }
    return std::move(gradients_);
  }

 private:
  void look_at(const Nodes& nodes, const Imports& imports) {
    each_node(nodes, [&](const onnx::NodeProto& node) {
      const std::string id = function_id(node);
      const auto found = own_.ops.find(id);
      if (found == own_.ops.end()) return;
      const CustomOp& op = *found->second;
      if (ids_.insert(id).second) take(id, op);
      check_call(node, op.body);
      check_version(node, op, imports);
    });
  }

  void take(const std::string& id, const CustomOp& op) {
    const auto there = there_.find(id);
    if (there == there_.end()) {
      *model_->add_functions() = op.body;
    } else if (identity_of(*there->second) != identity_of(op.body)) {
      throw ModelError(
          {.what = "A function of the model differs from the registered function of the same name.",
           .node = quote(qualified(op.body)),
           .expected = "the function that is registered, or another name",
           .received = "one with other nodes, attributes or opset",
           .remedy = "Unregister the registered function, or rename one of the two."});
    }
    if (!op.gradient) return;
    onnx::FunctionProto& gradient = *model_->add_functions();
    gradient = op.gradient->function;
    gradient.set_name(qualified(op.body));
    gradient.set_domain(kGradientDomain);
    gradients_.emplace(id, GradientCall{function_id(gradient), op.gradient->wrt});
  }

  onnx::ModelProto* model_;
  const CustomFunctions& own_;
  std::unordered_map<std::string, const onnx::FunctionProto*> there_;  // functions in the file
  std::set<std::string> ids_;
  std::unordered_map<std::string, GradientCall> gradients_;
};

}  // namespace

std::shared_ptr<const CustomFunctions> custom_functions() {
  const std::lock_guard lock(store().mutex);
  return store().now;
}

void change_custom_functions(const std::function<void(CustomFunctions&)>& change) {
  const std::lock_guard lock(store().mutex);
  auto next = std::make_shared<CustomFunctions>(*store().now);
  change(*next);
  store().now = std::move(next);
}

std::unordered_map<std::string, GradientCall> add_custom_functions(onnx::ModelProto* model) {
  return add_custom_functions(model, *custom_functions());
}

std::unordered_map<std::string, GradientCall> add_custom_functions(onnx::ModelProto* model,
                                                                   const CustomFunctions& own) {
  if (own.ops.empty()) return {};
  return Adder(model, own).add();
}

std::string identity_of(const onnx::FunctionProto& function) {
  onnx::FunctionProto plain = function;
  Renamer().rename(&plain);
  int64_t opset = 0;  // of the default domain, which may be spelled "" or "ai.onnx"
  for (const auto& import : plain.opset_import()) {
    if (import.domain().empty() || import.domain() == "ai.onnx") opset = import.version();
  }
  plain.clear_opset_import();
  plain.add_opset_import()->set_version(opset);
  std::string bytes;
  google::protobuf::io::StringOutputStream out(&bytes);
  google::protobuf::io::CodedOutputStream coded(&out);
  coded.SetSerializationDeterministic(true);
  plain.SerializeToCodedStream(&coded);
  coded.Trim();
  return bytes;
}

void each_node_of(const onnx::FunctionProto& function, const Visit& visit) {
  each_node(function.node(), visit);
}

std::vector<std::string> attribute_names(const onnx::FunctionProto& function) {
  std::vector<std::string> names(function.attribute().begin(), function.attribute().end());
  for (const auto& attribute : function.attribute_proto()) names.push_back(attribute.name());
  return names;
}

std::string qualified(const onnx::FunctionProto& function) {
  return function.domain() + "." + function.name();
}

}  // namespace steep
