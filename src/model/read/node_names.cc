// Which nodes of a file are operators of ours.
#include "model/import/check.h"
#include "ops/op_def.h"

namespace steep {

bool says_gradient(const onnx::NodeProto& node) {
  return node.domain() == "steep" &&
         (node.op_type() == "GradientOf" || node.op_type().rfind("WithGradient", 0) == 0);
}

bool is_own(const onnx::NodeProto& node) {
  if (node.domain() != "steep") return false;
  const OpDef* def = find_op("steep." + node.op_type());
  return def != nullptr && def->in_files;
}

std::string canonical_name(const onnx::NodeProto& node) {
  if (says_gradient(node)) return "steep." + node.op_type().substr(0, node.op_type().find('_'));
  return node.domain().empty() ? node.op_type() : node.domain() + "." + node.op_type();
}

}  // namespace steep
