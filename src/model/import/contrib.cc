// Operators of com.microsoft (contrib/contrib.h), where a model has them: found, and imported as
// the functions that they mean.
#include "contrib/contrib.h"

#include <fmt/format.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <array>
#include <unordered_set>

#include "model/import/importer.h"
#include "model/read/attributes.h"
#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

/// Moves nodes that ONNX Runtime writes in ONNX's own domain into its own.
class Mover {
 public:
  explicit Mover(const onnx::ModelProto& model) {
    for (const auto& function : model.functions()) functions_.insert(function_id(function));
  }

  /// Of a model or function, which import domains.
  template <typename Holder>
  void move(Nodes* nodes, Holder* holder) {
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
  /// True if it has moved any.
  bool look_at(Nodes* nodes) {
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

}  // namespace

bool is_contrib(const onnx::NodeProto& node) {
  return node.domain() == kContribDomain && find_contrib(node.op_type()) != nullptr;
}

void move_contrib(onnx::ModelProto* model) {
  Mover mover(*model);
  mover.move(model->mutable_graph()->mutable_node(), model);
  for (auto& function : *model->mutable_functions()) mover.move(function.mutable_node(), &function);
}

std::vector<Binding> Importer::import_contrib(const onnx::NodeProto& node,
                                              const std::vector<Binding>& inputs,
                                              const Frame& frame) {
  const std::string name = frame.prefix + display_name(node);
  ContribCall call{.op = *find_contrib(node.op_type()),
                   .node = quote(name),
                   .inputs = {},
                   .attrs = {},
                   .wanted = {}};
  for (const Binding& b : inputs) {
    if (b.items() != nullptr || (b && b.value().type().kind != Kind::tensor)) {
      call.fail("An input of a tensor operator is not a tensor.",
                fmt::format("a tensor as input {}", call.inputs.size()),
                b.items() != nullptr ? "a sequence" : to_string(b.value().type()),
                "Export the model again; its types do not fit.");
    }
    call.inputs.push_back(b ? b.value().type() : Type());
  }
  for (const auto& proto : node.attribute()) {
    const onnx::AttributeProto* attribute = resolve(proto, frame);
    if (attribute == nullptr) continue;
    Attr value = attr_from_onnx(*attribute, call.node, *model_.tensors);
    if (auto* text = std::get_if<std::string>(&value)) *text = quote(*text);  // for messages
    call.attrs.set(proto.name(), std::move(value));
  }
  for (const auto& output : node.output()) {
    call.wanted.push_back(!output.empty() && read_.count(output) != 0);
  }
  const onnx::FunctionProto function = contrib_function(call);
  // Its names are read while it is inlined, and are nobody's else.
  std::vector<std::string> added;
  auto read = [&](const auto& names) {
    for (const std::string& n : names) {
      if (read_.insert(n).second) added.push_back(n);
    }
  };
  for (int i = 0; i < function.output_size(); ++i) {
    if (call.wants(static_cast<size_t>(i))) read(std::array{function.output(i)});
  }
  for (const auto& inner : function.node()) read(inner.input());
  std::vector<Binding> results = import_call(node, function, inputs, frame, name + "/");
  for (const std::string& n : added) read_.erase(n);
  return results;
}

}  // namespace steep
