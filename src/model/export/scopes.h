// Who reads what in a file: the values of a graph and of all bodies in it, with their readers.
#pragma once

#include <onnx/onnx_pb.h>

#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "model/read/body_names.h"

namespace steep {

/// The tensor of a Constant node; null for another node, and for a constant in another form.
const onnx::TensorProto* constant_of(const onnx::NodeProto& node);

/// All names of values in a graph and in all bodies in it.
std::unordered_set<std::string> all_names(const onnx::GraphProto& graph);

/// Resolves names as ONNX does: a body sees the names of the graphs around it. Numbers count from
/// 0: nodes in the order of the file, where those of bodies follow the node that has them.
class Scopes {
 public:
  struct Reader {
    int node;
    int input;
  };

  struct Value {
    const onnx::TensorProto* tensor = nullptr;  ///< of an initializer or a Constant node
    std::string name{};        ///< of the tensor, as users see it (BodyNames); "": ambiguous
    bool initializer = false;  ///< of the model's own graph
    std::string why_output{};  ///< "is an output of the model", or of a body; "": it is none
    std::vector<Reader> readers{};
  };

  /// Borrows the graph.
  Scopes(const onnx::GraphProto& graph, const BodyNames& names);

  const onnx::NodeProto& node(int number) const {
    return *nodes_[static_cast<size_t>(number)].proto;
  }
  const Value& value(int number) const { return values_[static_cast<size_t>(number)]; }
  /// The values with tensors: initializers of the model's graph, then its Constant nodes, then
  /// those of bodies.
  std::span<const int> tensors() const { return tensors_; }
  /// The values of a node; -1: absent, or a name that nothing defines.
  int input(int node, int i) const { return at(nodes_[static_cast<size_t>(node)].inputs, i); }
  int output(int node, int i) const { return at(nodes_[static_cast<size_t>(node)].outputs, i); }

 private:
  struct Scope;
  struct Node {
    const onnx::NodeProto* proto;
    std::vector<int> inputs{}, outputs{};
  };

  static int at(const std::vector<int>& values, int i) {
    return static_cast<size_t>(i) < values.size() ? values[static_cast<size_t>(i)] : -1;
  }
  void add(const onnx::GraphProto& graph, const Scope* outer, const std::string& path,
           const std::string& outputs);
  void define_all(const onnx::GraphProto& graph, Scope& scope, const std::string& path);
  void add_node(const onnx::NodeProto& node, const Scope& scope, const std::string& path);

  const BodyNames& names_;
  std::vector<Node> nodes_;
  std::vector<Value> values_;
  std::vector<int> tensors_;
};

}  // namespace steep
