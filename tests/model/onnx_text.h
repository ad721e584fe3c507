// Models for tests, written in ONNX's text form.
#pragma once

#include <gtest/gtest.h>
#include <onnx/defs/parser.h>

#include <span>
#include <string>
#include <vector>

#include "model/import/import.h"

namespace steep::testing {

inline onnx::ModelProto parse_text(const std::string& text) {
  onnx::ModelProto model;
  const auto status = onnx::OnnxParser::Parse(model, text.c_str());
  EXPECT_TRUE(status.IsOK()) << status.ErrorMessage();
  return model;
}

inline std::string to_bytes(const onnx::ModelProto& model) { return model.SerializeAsString(); }
inline std::span<const std::byte> as_span(const std::string& bytes) {
  return std::as_bytes(std::span(bytes));
}

inline ImportedModel import_bytes(const std::string& bytes, const Limits& limits = {},
                                  const std::filesystem::path& folder = {}) {
  return import_model(as_span(bytes), {.limits = limits}, folder);
}

/// `body` is a graph: `g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }`.
inline ImportedModel import_graph(int opset, const std::string& body, const Limits& limits = {}) {
  return import_bytes(to_bytes(parse_text("<ir_version: 8, opset_import: [\"\" : " +
                                          std::to_string(opset) + "]> " + body)),
                      limits);
}

/// The operators of the graph, in order.
inline std::vector<std::string> ops(const Graph& graph) {
  std::vector<std::string> names;
  for (Node n : graph.nodes()) names.push_back(n.op());
  return names;
}

}  // namespace steep::testing
