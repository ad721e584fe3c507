#include "model/import/weights.h"

#include <fmt/format.h>

#include "ops/op_def.h"

namespace steep {

Weights::Weights(const CheckedModel& model, Graph& graph, const std::set<std::string>& caller_names)
    : model_(model), graph_(graph), caller_names_(caller_names) {
  for (const auto& node : model.proto.graph().node()) {
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) note_settings(attribute.g().node());
    }
  }
}

Weights::InBody::InBody(Weights& weights, const onnx::NodeProto& node, const char* attribute)
    : weights_(weights), before_(weights.path_) {
  if (attribute == nullptr) {
    weights.path_.reset();
  } else if (weights.path_) {
    *weights.path_ += display_name(node) + "/" + attribute + "/";
  }
}

void Weights::note_settings(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
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

std::string Weights::why_not(const std::string& public_name, const std::string& name,
                             const Tensor& tensor, bool constant_node) const {
  if (public_name.empty()) return "has the name of another";
  if (caller_names_.count(public_name) != 0) return "";
  const auto setting = settings_.find(name);
  if (setting != settings_.end()) return setting->second;
  if (constant_node) return "is a Constant node";
  if (tensor.size() <= 1) return tensor.dims().empty() ? "is a scalar" : "is a single number";
  return "";
}

Value Weights::lift(const std::string& name, const Tensor& tensor, bool constant_node) {
  if (!is_float(tensor.dtype()) || !within_body()) return {};
  if (!constant_node && model_.sparse.count(name) != 0) return {};
  const std::string& public_name = model_.body_names.of(*path_, name);
  const std::string why = why_not(public_name, name, tensor, constant_node);
  if (!why.empty()) {
    if (!(constant_node && tensor.size() <= 1))
      inside_.emplace(public_name.empty() ? *path_ + name : public_name,
                      why + ", inside of a branch or loop");
    return {};
  }
  auto [at, fresh] = by_name_.try_emplace(public_name);
  if (fresh) {
    at->second = graph_.add_constant(tensor, public_name);
    add(at->second);
    lifted_.push_back(public_name);
  }
  return at->second;
}

void Weights::note_constant(const std::string& name, Value v) {
  if (path_ && path_->empty() && caller_names_.count(name) != 0) add(v);  // bodies may read it, too
}

}  // namespace steep
