// Bodies of control flow under construction: what they read of the graphs around them is made their
// inputs.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/import/importer.h"

namespace steep {

constexpr size_t kBodyNodes = 16;  ///< what a graph of its own costs, in nodes

/// While it lives, Importer::graph() is the body's. Values of the outer graphs become inputs of the
/// body; constants that are not weights become constants.
class OpenBody {
 public:
  explicit OpenBody(Importer& importer);
  ~OpenBody();
  OpenBody(const OpenBody&) = delete;
  OpenBody& operator=(const OpenBody&) = delete;

  const std::shared_ptr<Graph>& graph() const { return graph_; }
  /// `v`, of this graph or of one around it, in this graph.
  Value capture(Value v);
  /// The body's outputs, by the names that they have in the file; drops what none of them reads.
  /// Throws ModelError for a name that nothing defines.
  void add_outputs(const onnx::GraphProto& body, const NameScope& scope);
  /// By input of the body past the first `own`: the value outside, in the enclosing graph.
  std::vector<Value> captured(size_t own) const;

 private:
  Importer& importer_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  Graph* outer_;
  OpenBody* outside_;
  std::unordered_map<uint32_t, Value> inner_of_;  // by id in the enclosing graph
  std::unordered_map<uint32_t, Value> outer_of_;  // by id of an input
};

/// Throws ModelError, saying `what`, where the two dtypes differ.
void require_same_element(const Type& a, const Type& b, const std::string& what);

}  // namespace steep
