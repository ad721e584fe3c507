// Finds operators of com.microsoft (contrib/contrib.h) in a model, and imports them as the
// functions that define them.
#include "contrib/contrib.h"

#include <fmt/format.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <unordered_set>

#include "model/import/handlers.h"
#include "model/import/inline.h"
#include "model/read/attributes.h"
#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Moves nodes from ONNX's domain to com.microsoft when they are operators of ONNX Runtime.
class Mover {
 public:
  explicit Mover(const onnx::ModelProto& model) {
    for (const auto& function : model.functions()) functions_.insert(function_id(function));
  }

  /// Moves the nodes of a model or function, `holder`, which imports domains.
  template <typename Holder>
  void move(NodeProtos* nodes, Holder* holder) {
    opset_ = static_cast<int>(default_opset(holder->opset_import()));
    if (!look_at(nodes)) return;
    const auto& imports = holder->opset_import();
    if (std::any_of(imports.begin(), imports.end(),
                    [](const auto& import) { return import.domain() == kContribDomain; }))
      return;
    onnx::OperatorSetIdProto& import = *holder->add_opset_import();
    import.set_domain(std::string(kContribDomain));
    import.set_version(1);
  }

 private:
  /// Returns true if it moved a node.
  bool look_at(NodeProtos* nodes) {
    bool moved = false;
    for (auto& node : *nodes) {
      for (auto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g()) moved |= look_at(attribute.mutable_g()->mutable_node());
        for (auto& graph : *attribute.mutable_graphs()) moved |= look_at(graph.mutable_node());
      }
      if (!node.domain().empty() || functions_.count(function_id(node)) != 0) continue;
      const ContribOp* op = find_contrib(node.op_type());
      if (op == nullptr || !op->in_default_domain ||
          onnx::OpSchemaRegistry::Schema(node.op_type(), opset_) != nullptr) {
        continue;
      }
      node.set_domain(std::string(kContribDomain));
      moved = true;
    }
    return moved;
  }

  std::unordered_set<std::string> functions_;
  int opset_ = 0;
};

/// While it lives, the names that the function of a call reads, and the outputs that the call
/// wants, count as read. No other node uses these names.
class FunctionReads {
 public:
  FunctionReads(NamesRead& names, const ContribCall& call, const onnx::FunctionProto& function)
      : names_(names) {
    for (int i = 0; i < function.output_size(); ++i) {
      if (call.wants(static_cast<size_t>(i))) add(function.output(i));
    }
    for (const auto& node : function.node()) {
      for (const std::string& name : node.input()) add(name);
    }
  }
  ~FunctionReads() {
    for (const std::string& name : new_names_) names_.erase(name);
  }
  FunctionReads(const FunctionReads&) = delete;
  FunctionReads& operator=(const FunctionReads&) = delete;

 private:
  void add(const std::string& name) {
    if (names_.insert(name)) new_names_.push_back(name);
  }

  NamesRead& names_;
  std::vector<std::string> new_names_;
};

}  // namespace

bool is_contrib(const onnx::NodeProto& node) {
  return node.domain() == kContribDomain && find_contrib(node.op_type()) != nullptr;
}

void move_contrib(onnx::ModelProto* model) {
  Mover mover(*model);
  mover.move(model->mutable_graph()->mutable_node(), model);
  for (auto& function : *model->mutable_functions()) mover.move(function.mutable_node(), &function);
}

Bindings import_contrib(Importer& importer, FileNode& node) {
  const std::string name = node.name();
  ContribCall call{.op = *find_contrib(node.proto.op_type()),
                   .node = quote(name),
                   .inputs = {},
                   .attrs = {},
                   .wanted = {}};
  for (const Binding& b : node.inputs) {
    if (b.items() != nullptr || (b && b.value().type().kind != Kind::tensor)) {
      call.fail("An input of a tensor operator is not a tensor.",
                fmt::format("a tensor as input {}", call.inputs.size()),
                b.items() != nullptr ? "a sequence" : to_string(b.value().type()),
                "Export the model again; its types do not fit.");
    }
    call.inputs.push_back(b ? b.value().type() : Type());
  }
  for (const auto& proto : node.proto.attribute()) {
    const onnx::AttributeProto* attribute = node.frame.resolve(proto);
    if (attribute == nullptr) continue;
    Attr value = attr_from_onnx(*attribute, call.node, *importer.model().tensors);
    if (auto* text = std::get_if<std::string>(&value)) *text = quote(*text);  // messages quote it
    call.attrs.set(proto.name(), std::move(value));
  }
  for (const auto& output : node.proto.output()) {
    call.wanted.push_back(!output.empty() && importer.names_read().contains(output));
  }
  const onnx::FunctionProto function = contrib_function(call);
  const FunctionReads reads(importer.names_read(), call, function);
  return inline_function(importer, {.node = node.proto,
                                    .function = function,
                                    .inputs = node.inputs,
                                    .frame = node.frame,
                                    .prefix = name + "/"});
}

}  // namespace steep
