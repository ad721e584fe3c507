// Construction of the bodies of control flow: values of enclosing graphs that a body reads become
// its inputs.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/import/importer.h"

namespace steep {

constexpr size_t kBodyNodes = 16;  ///< the cost of a graph, in nodes

/// While an OpenBody lives, Importer::graph() is the body's graph. Values of enclosing graphs
/// become inputs of the body; constants that are not weights become constants of the body.
class OpenBody {
 public:
  explicit OpenBody(Importer& importer);
  ~OpenBody();
  OpenBody(const OpenBody&) = delete;
  OpenBody& operator=(const OpenBody&) = delete;

  const std::shared_ptr<Graph>& graph() const { return graph_; }
  /// `v`, a value of this graph or of an enclosing one, as a value of this graph.
  Value capture(Value v);
  /// Adds the body's outputs, by their names in the file; removes nodes that no output needs.
  /// Throws ModelError for a name that nothing defines.
  void add_outputs(const onnx::GraphProto& body, const NameScope& scope);
  /// For each input of the body after the first `own`: the captured value in the enclosing graph.
  std::vector<Value> captured(size_t own) const;

 private:
  Importer& importer_;
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
  Graph* outer_;
  OpenBody* outside_;
  std::unordered_map<uint32_t, Value> inner_of_;  // by value id in the enclosing graph
  std::unordered_map<uint32_t, Value> outer_of_;  // by id of the body's input
};

/// Throws ModelError with the text `what` when the two dtypes differ.
void require_same_element(const Type& a, const Type& b, const std::string& what);

}  // namespace steep
