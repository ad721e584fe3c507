#include "model/export.h"

#include <fmt/format.h>
#include <onnx/checker.h>
#include <onnx/defs/schema.h>

#include <climits>
#include <set>
#include <unordered_set>

#include "engine.h"
#include "model/plain_ops.h"
#include "ops/build.h"
#include "ops/onnx_proto.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr int kOldestOpset = 18;  // the first in which every reduction takes its axes as an input
constexpr int kIrVersion = 10;    // knows every element type that Steep holds

bool is_own(Node n) { return n.op().rfind("steep.", 0) == 0; }

/// Operators whose meaning changed although older schemas would accept the newest form.
int first_with_todays_meaning(const std::string& op) {
  if (op == "Resize" || op == "AveragePool" || op == "Pad") return 19;
  if (op == "GridSample" || op == "DFT") return 20;
  if (op == "GroupNormalization") return 21;
  return kOldestOpset;
}

bool takes(const std::vector<onnx::OpSchema::FormalParameter>& formal, size_t i,
           const onnx::TypeProto& type) {
  if (formal.empty()) return false;
  const auto& types = formal[std::min(i, formal.size() - 1)].GetTypes();
  return types.count(onnx::Utils::DataTypeUtils::ToType(type)) != 0;
}

/// Can `opset` say this node?
bool expressible(Node n, const onnx::NodeProto& proto, int opset) {
  if (opset < first_with_todays_meaning(n.op())) return false;
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(n.op(), opset);
  if (schema == nullptr || schema->Deprecated()) return false;
  try {
    schema->Verify(proto);
  } catch (const std::exception&) {
    return false;
  }
  for (int i = 0; i < n.input_count(); ++i) {
    const Value x = n.input(i);
    if (x && !takes(schema->inputs(), static_cast<size_t>(i), to_proto(Type{x.dtype(), {}})))
      return false;
  }
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    if (y && !takes(schema->outputs(), static_cast<size_t>(i), to_proto(Type{y.dtype(), {}})))
      return false;
  }
  return true;
}

class Writer {
 public:
  Writer(const Graph& graph, const std::string& name) : graph_(graph) {
    out_ = model_.mutable_graph();
    out_->set_name(name);
    for (Value v : graph.inputs()) taken_.insert(v.name());
    for (const Output& o : graph.outputs()) taken_.insert(o.name);
  }

  std::string write() {
    for (Value v : graph_.inputs()) add_input(v);
    for (const Output& o : graph_.outputs()) claim(o);
    for (Node n : graph_.nodes()) add_node(n);
    for (const Output& o : graph_.outputs()) add_output(o);
    model_.set_ir_version(kIrVersion);
    model_.set_producer_name("steep");
    model_.add_opset_import()->set_version(opset());
    return serialise();
  }

 private:
  [[noreturn]] static void refuse(const std::string& what, const std::string& node,
                                  const std::string& op, const std::string& remedy) {
    throw ModelError({.what = what, .node = node, .op = op, .remedy = remedy});
  }

  void add_input(Value v) {
    if (v.name() == kSeedInput) {
      refuse("Random draws of the engine cannot be written as ONNX.", v.name(), "",
             "Export the model in inference mode, without dropout.");
    }
    names_[v.id()] = v.name();
    describe(v.name(), v.type(), out_->add_input());
  }

  static void describe(const std::string& name, const Type& type, onnx::ValueInfoProto* info) {
    info->set_name(name);
    *info->mutable_type() = to_proto(type);
  }

  /// A node's result is called as the output that it is.
  void claim(const Output& output) {
    if (output.value.role() == Role::temp) names_.try_emplace(output.value.id(), output.name);
  }

  void add_output(const Output& output) {
    const std::string name = name_of_value(output.value);
    if (name != output.name || output.value.role() != Role::temp) {
      onnx::NodeProto* copy = out_->add_node();
      copy->set_op_type("Identity");
      copy->set_name(unused_node("output/" + output.name));
      copy->add_input(name);
      copy->add_output(output.name);
    }
    describe(output.name, output.value.type(), out_->add_output());
  }

  static std::string unused_in(std::unordered_set<std::string>& taken, const std::string& wanted) {
    std::string name = wanted;
    for (int i = 2; !taken.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
    return name;
  }
  std::string unused(const std::string& wanted) {
    return unused_in(taken_, wanted.empty() ? "value" : wanted);
  }
  std::string unused_node(const std::string& wanted) { return unused_in(nodes_, wanted); }

  const std::string& name_of_value(Value v) {
    auto [it, fresh] = names_.try_emplace(v.id());
    if (!fresh) return it->second;
    it->second = unused(v.name());
    if (v.role() == Role::state) {
      refuse("A state cannot be written as ONNX.", v.name(), "", "Make it a constant first.");
    }
    if (const Tensor* t = constant(v)) {
      bytes_ += t->nbytes();
      if (bytes_ > size_t{INT_MAX}) {
        refuse("The model would be larger than protobuf can write.", v.name(), "",
               "Make large weights inputs of the model.");
      }
      onnx::TensorProto* tensor = out_->add_initializer();
      *tensor = to_proto(*t);
      tensor->set_name(it->second);
    }
    return it->second;
  }

  void add_node(Node n) {
    if (is_own(n)) {
      refuse("An operator of Steep's own cannot be written as ONNX.", n.name(), n.op(),
             "Replace the operator that it came from.");
    }
    onnx::NodeProto* proto = out_->add_node();
    proto->set_op_type(n.op());
    proto->set_name(unused_node(n.name()));
    for (int i = 0; i < n.input_count(); ++i) {
      proto->add_input(n.input(i) ? name_of_value(n.input(i)) : "");
    }
    for (int i = 0; i < n.output_count(); ++i) {
      proto->add_output(n.output(i) ? name_of_value(n.output(i)) : "");
    }
    for (const auto& [name, attr] : n.attrs()) {
      if (std::holds_alternative<Body>(attr)) {
        refuse("A node with a graph inside cannot be written as ONNX yet.", n.name(), n.op(),
               "Export the model without control flow.");
      }
      *proto->add_attribute() = to_proto(name, attr);
    }
    written_.push_back(n);
  }

  int opset() const {
    const int newest = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
    Node unsaid;
    for (int version = kOldestOpset; version <= newest; ++version) {
      unsaid = Node();
      for (size_t i = 0; !unsaid && i < written_.size(); ++i) {
        if (!expressible(written_[i], out_->node(static_cast<int>(i)), version))
          unsaid = written_[i];
      }
      if (!unsaid) return version;
    }
    std::string types;
    for (int i = 0; i < unsaid.input_count(); ++i) {
      if (unsaid.input(i)) types += (types.empty() ? "" : ", ") + to_string(unsaid.input(i).type());
    }
    throw ModelError({.what = "The model's types are not those of ONNX's operators.",
                      .node = unsaid.name(),
                      .op = unsaid.op(),
                      .expected = "inputs that the operator allows",
                      .received = types,
                      .remedy = "Export the model again: other runtimes refuse this node too."});
  }

  std::string serialise() {
    check();
    std::string bytes;
    if (model_.ByteSizeLong() > size_t{INT_MAX} || !model_.SerializeToString(&bytes)) {
      refuse("The model would be larger than protobuf can write.", out_->name(), "",
             "Make large weights inputs of the model.");
    }
    return bytes;
  }

  /// The checker wants a shape everywhere; where the rank is not known there is none to write.
  void check() {
    std::vector<onnx::TypeProto::Tensor*> unranked;
    for (auto* infos : {out_->mutable_input(), out_->mutable_output()}) {
      for (auto& info : *infos) {
        auto* tensor = info.mutable_type()->mutable_tensor_type();
        if (tensor->has_shape()) continue;
        tensor->mutable_shape();
        unranked.push_back(tensor);
      }
    }
    try {
      onnx::checker::check_model(model_);
    } catch (const std::exception& e) {
      throw InternalError({.what = "The exported model is not ONNX.", .received = e.what()});
    }
    for (auto* tensor : unranked) tensor->clear_shape();
  }

  const Graph& graph_;
  onnx::ModelProto model_;
  onnx::GraphProto* out_ = nullptr;
  std::unordered_map<uint32_t, std::string> names_;  // by value id
  std::unordered_set<std::string> taken_;            // names of values
  std::unordered_set<std::string> nodes_;            // names of nodes
  std::vector<Node> written_;  // the graph's nodes, in the order of the model's
  size_t bytes_ = 0;
};

}  // namespace

void expand_own_ops(Graph& g) {
  std::set<std::string> without;
  for (bool again = true; again;) {
    again = false;
    without.clear();
    for (Node n : g.nodes()) {
      if (!is_own(n)) continue;
      const Graph::Scope scope(g, n.phase(), n.name());
      const std::vector<Value> parts = in_plain_ops(n);
      if (parts.empty()) {
        without.insert(fmt::format("{} ({})", n.name(), n.op()));
        continue;
      }
      for (int i = 0; i < n.output_count(); ++i) {
        if (!n.output(i)) continue;
        g.replace_uses(n.output(i), parts.at(static_cast<size_t>(i)));
      }
      g.erase(n);
      again = true;
    }
    g.prune();
  }
  if (without.empty()) return;
  std::string all;
  for (const std::string& text : without) all += (all.empty() ? "" : ", ") + text;
  throw ModelError({.what = "The model cannot be written with ONNX's operators alone.",
                    .expected = "operators that have a decomposition",
                    .received = all,
                    .remedy = "Replace the operators that these came from."});
}

std::string export_model(const Graph& graph, const std::string& name) {
  return Writer(graph, name).write();
}

}  // namespace steep
