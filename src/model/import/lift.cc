// Weights that stand inside of bodies of control flow become constants of the model's graph, which
// the bodies read: so they are trained, named and exported as others are.

#include <fmt/format.h>

#include "model/import/importer.h"
#include "ops/op_def.h"

namespace steep {

Importer::InBody::InBody(Importer& l, const onnx::NodeProto& node, const char* attribute)
    : importer(l), before(l.body_path_) {
  if (attribute == nullptr) {
    l.body_path_.reset();
  } else if (l.body_path_) {
    *l.body_path_ += display_name(node) + "/" + attribute + "/";
  }
}

void Importer::note_settings(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  for (const auto& node : nodes) {
    const OpDef* def = find_op(canonical_name(node));
    const std::string& op = node.op_type();
    auto note = [&](int input, const std::string& why) {
      if (input < node.input_size() && !node.input(input).empty())
        settings_.emplace(node.input(input), why);
    };
    if (def != nullptr) {
      for (const int input : def->settings) note(input, "is a setting of " + op);
    }
    if (op == "Upsample") note(1, "is a setting of " + op);
    for (int i = 1; op.find("uantize") != std::string::npos && i < node.input_size(); ++i)
      note(i, "is a scale of quantisation");
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) note_settings(attribute.g().node());
    }
  }
}

Value Importer::lift(const std::string& name, const Tensor& tensor, bool constant_node) {
  if (!is_float(tensor.dtype()) || !body_path_ || body_path_->empty()) return {};
  if (!constant_node && model_.sparse.count(name) != 0) return {};
  const std::string& shown = model_.body_names.of(*body_path_, name);
  const bool named = !shown.empty() && named_.count(shown) != 0;
  std::string why;
  const auto setting = settings_.find(name);
  if (shown.empty()) {
    why = "has the name of another";
  } else if (!named && setting != settings_.end()) {
    why = setting->second;
  } else if (!named && constant_node) {
    why = "is a Constant node";
  } else if (!named && tensor.size() <= 1) {
    why = tensor.dims().empty() ? "is a scalar" : "is a single number";
  }
  if (!why.empty()) {
    if (!(constant_node && tensor.size() <= 1))
      inside_.emplace(shown.empty() ? *body_path_ + name : shown,
                      why + ", inside of a branch or loop");
    return {};
  }
  auto [at, fresh] = lifted_.try_emplace(shown);
  if (fresh) {
    at->second = root_->add_constant(tensor, shown);
    parameters_.insert(at->second.id());
    lifted_names_.push_back(shown);
  }
  return at->second;
}

}  // namespace steep
