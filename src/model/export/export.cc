#include "model/export/export.h"

#include <fmt/format.h>
#include <onnx/checker.h>
#include <onnx/defs/schema.h>

#include <climits>
#include <map>
#include <set>
#include <unordered_map>

#include "autodiff/gradient.h"
#include "ir/seed.h"
#include "ops/build.h"
#include "ops/defs/batch_norm.h"
#include "ops/defs/loop.h"
#include "ops/metadata_keys.h"
#include "ops/offered.h"
#include "ops/onnx_proto.h"
#include "ops/steep_types.h"
#include "ops/wide.h"
#include "steep/error.h"

namespace steep {
namespace {

constexpr int kOldestOpset = 18;  // the first opset in which axes are an input of all reductions
constexpr int kIrVersion = 10;    // the first version with all element types that Steep has
constexpr size_t kShownBytes = 1024;  // of a constant small enough for a person to read

/// Written as an Identity with metadata.
bool stops_gradient(Node n) { return n.op() == "steep.StopGradient"; }

constexpr std::string_view kOwnDomain = "steep";

/// Written in the domain "steep" for Steep, which may differentiate the model again. ONNX has no
/// operator for it.
bool says_gradient(Node n) {
  return n.op() == "steep.WithGradient" || n.op() == "steep.GradientOf";
}

bool is_steep(Node n) {
  if (find_offered(n.op()) != nullptr) return true;
  return n.op().rfind("steep.", 0) == 0 && !stops_gradient(n) && !says_gradient(n);
}

/// Whether the node is one of Steep's operators that models for runtimes must not contain: ONNX can
/// express it in other ways, or it is never allowed in files. Operators that only captures contain
/// stay, because Steep itself reads those models.
bool is_inner(Node n) {
  if (!is_steep(n)) return false;
  const OpDef* def = find_op(n.op());
  return def == nullptr || !def->in_files || def->decompose != nullptr || def->export_decomposition;
}

/// Operators of recent opsets that common runtimes do not have yet: they are decomposed.
bool too_new(Node n) { return n.op() == "CumProd"; }

/// The opset from which on an operator has its present meaning, although older schemas would accept
/// its newest form.
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

/// The number of inputs that a node is written with. Bodies refer to the other inputs by name.
int inputs_of_its_own(Node n) {
  if (n.op() == "If") return 1;
  const bool loops = n.op() == "Loop" || n.op() == "Scan";
  return n.input_count() - (loops ? static_cast<int>(n.attrs().integer(kCaptured, 0)) : 0);
}

/// Whether the node can be written with `opset`.
bool expressible(Node n, const onnx::NodeProto& proto, int opset) {
  if (opset < first_with_todays_meaning(n.op())) return false;
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(proto.op_type(), opset);
  if (schema == nullptr || schema->Deprecated()) return false;
  try {
    schema->Verify(proto);
  } catch (const std::exception&) {
    return false;
  }
  auto element = [](Value v) { return to_proto(Type{v.dtype(), {}, v.type().kind}); };
  for (int i = 0; i < inputs_of_its_own(n); ++i) {
    const Value x = n.input(i);
    if (x && !takes(schema->inputs(), static_cast<size_t>(i), element(x))) return false;
  }
  for (int i = 0; i < n.output_count(); ++i) {
    const Value y = n.output(i);
    if (y && !takes(schema->outputs(), static_cast<size_t>(i), element(y))) return false;
  }
  return true;
}

/// The purpose of a written model.
enum class Reader : uint8_t { runtime, person };

class Writer {
 public:
  Writer(const Graph& graph, const std::string& name, Reader reader)
      : graph_(&graph), reader_(reader) {
    out_ = model_.mutable_graph();
    out_->set_name(name);
    for (Value v : graph.inputs()) value_names_.emplace(v.name(), 2);
    for (const Output& o : graph.outputs()) value_names_.emplace(o.name, 2);
  }

  std::string write() {
    std::vector<std::string> outputs;
    for (Value v : graph_->inputs()) add_input(v, v.name(), v.type());
    for (const Output& o : graph_->outputs()) outputs.push_back(o.name);
    add_contents(outputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      describe(outputs[i], graph_->outputs()[i].value.type(), out_->add_output());
    model_.set_ir_version(kIrVersion);
    model_.set_producer_name("steep");
    model_.add_opset_import()->set_version(reader_ == Reader::person ? newest_opset() : opset());
    if (!says_gradients_.empty() || reader_ == Reader::person)
      own_domains_.insert(std::string(kOwnDomain));
    for (const std::string& domain : own_domains_) {
      onnx::OperatorSetIdProto* own = model_.add_opset_import();
      own->set_domain(domain);
      own->set_version(1);
    }
    for (const auto& [name, counts] : says_gradients_) add_function(name, counts);
    return serialise();
  }

 private:
  [[noreturn]] static void refuse(const std::string& what, const std::string& node,
                                  const std::string& op, const std::string& remedy) {
    throw ModelError({.what = what, .node = node, .op = op, .remedy = remedy});
  }

  /// Adds a function that defines GradientOf or WithGradient for other runtimes: outputs are copies
  /// of the first inputs.
  void add_function(const std::string& name, const std::pair<int, int>& counts) {
    onnx::FunctionProto* f = model_.add_functions();
    f->set_domain(std::string(kOwnDomain));
    f->set_name(name);
    f->add_opset_import()->set_version(model_.opset_import(0).version());
    for (int i = 0; i < counts.first; ++i) f->add_input(fmt::format("x{}", i));
    for (int i = 0; i < counts.second; ++i) {
      f->add_output(fmt::format("y{}", i));
      onnx::NodeProto* copy = f->add_node();
      copy->set_op_type("Identity");
      copy->add_input(f->input(i));
      copy->add_output(f->output(i));
    }
    if (name != "GradientOf") f->add_attribute("outputs");
  }

  void add_input(Value v, const std::string& name, const Type& type) {
    if (is_seed(v) && reader_ == Reader::runtime) {
      refuse("Random draws of the engine cannot be written as ONNX.", v.name(), "",
             "Export the model in inference mode, without dropout.");
    }
    names_[v.id()] = name;
    describe(name, type, out_->add_input());
  }

  static void describe(const std::string& name, const Type& type, onnx::ValueInfoProto* info) {
    info->set_name(name);
    *info->mutable_type() = to_proto(type);
  }

  /// Adds the nodes, and nodes that give values the names of outputs where needed.
  void add_contents(const std::vector<std::string>& outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      const Value v = graph_->outputs()[i].value;
      // A node's output has the name of the graph output.
      if (v.role() == Role::temp) names_.try_emplace(v.id(), outputs[i]);
    }
    for (Node n : graph_->nodes()) add_node(n);
    for (size_t i = 0; i < outputs.size(); ++i) add_output(outputs[i], graph_->outputs()[i].value);
  }

  void add_output(const std::string& output_name, Value v) {
    const std::string name = name_of_value(v);
    if (name == output_name && v.role() == Role::temp) return;
    onnx::NodeProto* copy = out_->add_node();
    copy->set_op_type("Identity");
    copy->set_name(unused_node("output/" + output_name));
    copy->add_input(name);
    copy->add_output(output_name);
  }

  /// A name in use → the number to append for the next value of that name.
  using Taken = std::unordered_map<std::string, int>;

  static std::string unused_in(Taken& names, const std::string& base) {
    const auto [it, fresh] = names.try_emplace(base, 2);
    if (fresh) return base;
    int& next = it->second;  // stable across rehashing
    std::string name;
    do name = fmt::format("{}_{}", base, next++);
    while (!names.try_emplace(name, 2).second);
    return name;
  }
  std::string unused(const std::string& base) {
    return unused_in(value_names_, base.empty() ? "value" : base);
  }
  std::string unused_node(const std::string& base) { return unused_in(nodes_, base); }

  const std::string& name_of_value(Value v) {
    auto [it, fresh] = names_.try_emplace(v.id());
    if (!fresh) return it->second;
    it->second = unused(v.name());
    const Tensor* t = constant(v);
    const bool state = v.role() == Role::state;
    if (reader_ == Reader::person && (state || (t != nullptr && t->nbytes() > kShownBytes))) {
      describe(it->second, v.type(), model_.mutable_graph()->add_input());
      return it->second;
    }
    if (state) {
      refuse("A state cannot be written as ONNX.", v.name(), "", "Make it a constant first.");
    }
    if (t != nullptr) {
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
    if (is_inner(n) && reader_ == Reader::runtime) {
      refuse("A Steep operator cannot be written as ONNX.", n.name(), n.op(),
             "Replace the operator that it came from.");
    }
    // The values and names that a body reads must be made before its node.
    std::vector<std::string> inputs;
    for (int i = 0; i < n.input_count(); ++i)
      inputs.push_back(n.input(i) ? name_of_value(n.input(i)) : "");
    onnx::NodeProto* proto = out_->add_node();
    set_operator(n, proto);
    proto->set_name(unused_node(n.name()));
    int next = inputs_of_its_own(n);
    for (int i = 0; i < next; ++i) proto->add_input(inputs[static_cast<size_t>(i)]);
    for (int i = 0; i < n.output_count(); ++i) {
      proto->add_output(n.output(i) ? name_of_value(n.output(i)) : "");
    }
    for (const auto& [name, attr] : n.attrs()) {
      onnx::AttributeProto* attribute = add_attribute(proto, name, attr);
      const Body* body = std::get_if<Body>(&attr);
      if (attribute == nullptr || body == nullptr) continue;
      attribute->set_type(onnx::AttributeProto::GRAPH);
      const size_t all = (*body)->inputs().size();
      const size_t captured =
          n.op() == "If" ? all : static_cast<size_t>(n.attrs().integer(kCaptured, 0));
      const auto first = inputs.begin() + next;
      next += static_cast<int>(captured);
      add_body(**body, proto->name() + "/" + name, {first, first + static_cast<int>(captured)},
               attribute->mutable_g());
    }
    if (!says_gradient(n) && !is_steep(n)) written_.emplace_back(n, proto);
  }

  void set_operator(Node n, onnx::NodeProto* proto) {
    proto->set_op_type(stops_gradient(n) ? "Identity" : n.op());
    if (stops_gradient(n)) proto->add_metadata_props()->set_key(kStopGradientKey);
    if (is_steep(n)) {  // Steep's operator, or a provider's: "mirror.Swish"
      const size_t dot = n.op().rfind('.');
      proto->set_domain(n.op().substr(0, dot));
      proto->set_op_type(n.op().substr(dot + 1));
      own_domains_.insert(proto->domain());
    }
    if (says_gradient(n)) {
      proto->set_domain(std::string(kOwnDomain));
      proto->set_op_type(n.op().substr(kOwnDomain.size() + 1));
      const int operands = n.input_count(), results = n.output_count();
      // One function per number of operands and outputs: functions have a fixed signature.
      if (n.op() == "steep.WithGradient")
        *proto->mutable_op_type() += fmt::format("_{}_{}", operands, results);
      says_gradients_[proto->op_type()] = {operands, results};
    }
  }

  /// Null for attributes that files do not contain.
  static onnx::AttributeProto* add_attribute(onnx::NodeProto* proto, const std::string& name,
                                             const Attr& attr) {
    if (name == kCaptured) return nullptr;
    if (name == kSampleVariance) {
      proto->add_metadata_props()->set_key(kSampleVarianceKey);
      return nullptr;
    }
    onnx::AttributeProto* attribute = proto->add_attribute();
    *attribute = to_proto(name, attr);
    const auto* number = std::get_if<double>(&attr);
    if (number != nullptr && attribute->f() != *number) {
      onnx::StringStringEntryProto* digits = proto->add_metadata_props();
      digits->set_key(kDigitsKey + name);
      digits->set_value(fmt::format("{}", *number));
    }
    return attribute;
  }

  /// `captured`: names, in the enclosing graph, of the last inputs of the body. Names are unique in
  /// the whole model: runtimes refuse or misread bodies with shadowed names.
  void add_body(const Graph& body, const std::string& name,
                const std::vector<std::string>& captured, onnx::GraphProto* out) {
    std::unordered_map<uint32_t, std::string> names;
    const size_t own = body.inputs().size() - captured.size();
    for (size_t i = 0; i < captured.size(); ++i) names[body.inputs()[own + i].id()] = captured[i];
    names_.swap(names);
    const Graph* graph = std::exchange(graph_, &body);
    onnx::GraphProto* around = std::exchange(out_, out);
    out->set_name(name);
    for (size_t i = 0; i < own; ++i) {
      const Value v = body.inputs()[i];
      add_input(v, unused(v.name()), without_symbols(v.type()));
    }
    std::vector<std::string> outputs;
    for (const Output& o : body.outputs()) outputs.push_back(unused(o.name));
    add_contents(outputs);
    for (size_t i = 0; i < outputs.size(); ++i)
      describe(outputs[i], without_symbols(body.outputs()[i].value.type()), out_->add_output());
    out_ = around;
    graph_ = graph;
    names_.swap(names);
  }

  static int newest_opset() {
    return onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
  }

  int opset() const {
    const int newest = newest_opset();
    Node obstacle;
    for (int version = kOldestOpset; version <= newest; ++version) {
      obstacle = Node();
      for (size_t i = 0; !obstacle && i < written_.size(); ++i) {
        const auto& [node, proto] = written_[i];
        if (!expressible(node, *proto, version)) obstacle = node;
      }
      if (!obstacle) return version;
    }
    std::string types;
    for (int i = 0; i < obstacle.input_count(); ++i) {
      if (obstacle.input(i))
        types += (types.empty() ? "" : ", ") + to_string(obstacle.input(i).type());
    }
    throw ModelError({.what = "The model's types are not those of ONNX's operators.",
                      .node = obstacle.name(),
                      .op = obstacle.op(),
                      .expected = "inputs that the operator allows",
                      .received = types,
                      .remedy = "Export the model again: other runtimes refuse this node too."});
  }

  std::string serialise() {
    if (reader_ == Reader::runtime) check();
    std::string bytes;
    if (model_.ByteSizeLong() > size_t{INT_MAX} || !model_.SerializeToString(&bytes)) {
      refuse("The model would be larger than protobuf can write.", out_->name(), "",
             "Make large weights inputs of the model.");
    }
    return bytes;
  }

  /// Runs ONNX's checker. It requires a shape for every input and output, so values of unknown rank
  /// get one during the check.
  void check() {
    std::vector<onnx::TypeProto::Tensor*> unranked;
    for (auto* infos : {out_->mutable_input(), out_->mutable_output()}) {
      for (auto& info : *infos) {
        if (!info.type().has_tensor_type()) continue;
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

  const Graph* graph_;  // the graph being written: the model's, or a body
  Reader reader_;
  onnx::ModelProto model_;
  onnx::GraphProto* out_ = nullptr;                  // the message for graph_
  std::unordered_map<uint32_t, std::string> names_;  // by value id of graph_
  Taken value_names_;
  Taken nodes_;                        // of nodes
  std::set<std::string> own_domains_;  // of operators of Steep and of providers
  std::vector<std::pair<Node, const onnx::NodeProto*>> written_;
  size_t bytes_ = 0;
  // Name in the file → numbers of operands and outputs.
  std::map<std::string, std::pair<int, int>> says_gradients_;
};

/// The node's outputs in terms of other operators; empty when it has no decomposition.
std::vector<Value> export_parts(Node n) {
  const OpDef* def = find_op(n.op());
  if (def == nullptr || !(def->export_decomposition || def->decompose != nullptr)) return {};
  if (needs_float32(n)) return in_float32(n);
  return def->export_decomposition ? def->export_decomposition(n, add_gradients)
                                   : def->decompose(n);
}

void expand_bodies(Graph& g) {
  for (Node n : g.nodes()) {
    const Attrs attrs = n.attrs();
    for (const auto& [name, attr] : attrs) {
      const Body* body = std::get_if<Body>(&attr);
      if (body == nullptr) continue;
      auto copy = std::make_shared<Graph>(**body);
      expand_steep_ops(*copy);
      n.mutable_attrs().set(name, Body(std::move(copy)));
    }
  }
}

/// Removes unused outputs of If nodes. The gradient of an If has an output for every captured
/// value; an unused one may be the gradient of an optional, which ONNX cannot express.
void drop_unread_results(Graph& g) {
  const auto users = g.users();
  for (Node n : g.nodes()) {
    if (n.op() != "If") continue;
    std::vector<int> places;
    for (int i = 0; i < n.output_count(); ++i) {
      const Value y = n.output(i);
      if (y && (!users[y.id()].empty() || g.is_output(y))) places.push_back(i);
    }
    if (static_cast<int>(places.size()) == n.output_count()) continue;
    Attrs attrs = n.attrs();
    for (const char* name : {"then_branch", "else_branch"}) {
      auto body = std::make_shared<Graph>(n.attrs().body(name));
      const std::vector<Output> all = body->outputs();
      std::vector<Output> choice;
      for (int i : places) choice.push_back(all.at(static_cast<size_t>(i)));
      body->set_outputs(std::move(choice));
      body->prune();
      attrs.set(name, Body(std::move(body)));
    }
    std::vector<Value> inputs;
    for (int i = 0; i < n.input_count(); ++i) inputs.push_back(n.input(i));
    const Graph::Scope scope(g, n.phase(), n.name());
    const Node less = g.add_node("If", inputs, static_cast<int>(places.size()), std::move(attrs));
    for (size_t i = 0; i < places.size(); ++i) {
      const Value y = n.output(places[i]), instead = less.output(static_cast<int>(i));
      g.set_type(instead, y.type());
      g.replace_uses(y, instead);
    }
    g.erase(n);
  }
}

}  // namespace

void expand_steep_ops(Graph& g) {
  g.prune();
  drop_unread_results(g);
  std::set<std::string> without;
  for (bool again = true; again;) {
    again = false;
    without.clear();
    for (Node n : g.nodes()) {
      if (!is_inner(n) && !too_new(n)) continue;
      const Graph::Scope scope(g, n.phase(), n.name());
      const std::vector<Value> parts = export_parts(n);
      if (parts.empty()) {
        without.insert(fmt::format("{} ({})", n.name(), n.op()));
        continue;
      }
      for (int i = 0; i < n.output_count(); ++i) {
        if (!n.output(i) || !parts.at(static_cast<size_t>(i))) continue;
        g.replace_uses(n.output(i), parts[static_cast<size_t>(i)]);
      }
      g.erase(n);
      again = true;
    }
    g.prune();
  }
  expand_bodies(g);
  if (without.empty()) return;
  std::string all;
  for (const std::string& text : without) all += (all.empty() ? "" : ", ") + text;
  throw ModelError({.what = "The model cannot be written with ONNX's operators only.",
                    .expected = "operators that have a decomposition",
                    .received = all,
                    .remedy = "Replace the operators that these came from."});
}

std::string export_model(const Graph& graph, const std::string& name) {
  return Writer(graph, name, Reader::runtime).write();
}

std::string write_compiled(const Graph& graph, const std::string& name) {
  return Writer(graph, name, Reader::person).write();
}

}  // namespace steep
