// Reads the nodes of a file that is rewritten before its import, or after its export.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string_view>

namespace steep {

/// Whether the node's operator is `op` of ONNX's own domain.
inline bool is(const onnx::NodeProto& node, std::string_view op) {
  return node.op_type() == op && (node.domain().empty() || node.domain() == "ai.onnx");
}

/// Null if the node has no such attribute.
inline const onnx::AttributeProto* find_attribute(const onnx::NodeProto& node,
                                                  std::string_view name) {
  for (const auto& a : node.attribute()) {
    if (a.name() == name) return &a;
  }
  return nullptr;
}

inline int64_t integer(const onnx::NodeProto& node, std::string_view name, int64_t otherwise = 0) {
  const auto* a = find_attribute(node, name);
  return a == nullptr ? otherwise : a->i();
}

}  // namespace steep
