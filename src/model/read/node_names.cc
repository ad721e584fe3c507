#include "model/read/node_names.h"

#include "ops/op_def.h"

namespace steep {

bool says_gradient(const onnx::NodeProto& node) {
  return node.domain() == "steep" &&
         (node.op_type() == "GradientOf" || node.op_type().rfind("WithGradient", 0) == 0);
}

bool is_steep(const onnx::NodeProto& node) {
  if (node.domain() != "steep") return false;
  const OpDef* def = find_op("steep." + node.op_type());
  return def != nullptr && def->in_files;
}

std::string canonical_name(const onnx::NodeProto& node) {
  if (says_gradient(node)) return "steep." + node.op_type().substr(0, node.op_type().find('_'));
  return node.domain().empty() ? node.op_type() : node.domain() + "." + node.op_type();
}

int64_t default_opset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  for (const auto& import : imports) {
    if (import.domain().empty()) return import.version();
  }
  return 0;
}

std::string function_id(const onnx::FunctionProto& f) {
  return f.domain() + '\0' + f.name() + '\0' + f.overload();
}
std::string function_id(const onnx::NodeProto& n) {
  return n.domain() + '\0' + n.op_type() + '\0' + n.overload();
}

std::string display_name(const onnx::NodeProto& node) {
  if (!node.name().empty()) return node.name();
  for (const auto& output : node.output()) {
    if (!output.empty()) return output;
  }
  return node.op_type();
}

}  // namespace steep
