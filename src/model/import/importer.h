// Imports the nodes of a checked model, one after the other, into a Graph. It resolves names and
// calls the handler of each node's operator (handlers.h), which uses the functions declared here.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/import/check.h"
#include "model/import/import.h"
#include "model/import/weights.h"
#include "model/upgrade/call.h"

namespace steep {

class OpenBody;

using NodeProtos = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

/// The bindings of names in a graph, and in its enclosing graphs.
struct NameScope {
  std::unordered_map<std::string, Binding> names{};
  const NameScope* outer = nullptr;

  /// nullptr when the name is undefined; a null binding for an optional input that the call left
  /// out.
  const Binding* find(const std::string& name) const;
};

/// The context of the nodes being imported: the model's graph, or one call of a function.
struct CallFrame {
  int64_t opset = 0;                              ///< of the default domain
  std::string prefix{};                           ///< prefix of node names
  const onnx::FunctionProto* function = nullptr;  ///< null for graphs
  std::unordered_map<std::string, const onnx::AttributeProto*> arguments{};
  const CallFrame* caller = nullptr;
  int depth = 0;

  /// The attribute, or the function argument that it refers to; nullptr when the call leaves the
  /// argument out.
  const onnx::AttributeProto* resolve(const onnx::AttributeProto& attribute) const;
};

/// A node of the file with its context: what a handler gets besides the importer.
struct FileNode {
  const onnx::NodeProto& proto;
  std::vector<Binding> inputs;  ///< values of the graph under construction; the last is not null
  NameScope& scope;
  const CallFrame& frame;

  std::string name() const;
  /// The graph in this attribute. Throws ModelError when there is none.
  const onnx::GraphProto& body(const char* attribute) const;
};

/// The names that the file reads. Outputs that nothing reads may be missing.
class NamesRead {
 public:
  explicit NamesRead(const onnx::ModelProto& model);

  bool contains(const std::string& name) const { return names_.count(name) != 0; }
  /// Returns false if the name was in the set already.
  bool insert(const std::string& name) { return names_.insert(name).second; }
  void erase(const std::string& name) { names_.erase(name); }

 private:
  void note(const NodeProtos& nodes);

  std::unordered_set<std::string> names_;
};

class Importer final : public GraphWriter {
 public:
  Importer(const CheckedModel& model, Graph& graph, const ImportOptions& options);

  /// Imports inputs, initializers, nodes and outputs.
  void run();

  // --- access for handlers ----------------------------------------------------------------------

  const CheckedModel& model() const { return model_; }
  const Limits& limits() const { return options_.limits; }
  bool training() const { return options_.training; }
  /// The weights of the model and of its bodies.
  const Weights& weights() const { return weights_; }
  Weights& weights() { return weights_; }
  NamesRead& names_read() { return read_; }
  /// The function of the model with this function_id(); nullptr when there is none.
  const onnx::FunctionProto* find_function(const std::string& id) const;

  // --- output -----------------------------------------------------------------------------------

  /// The graph under construction: the model's, or that of the innermost open body (body.h).
  Graph& graph() const { return *graph_; }
  /// Adds the nodes. Errors without a node get the name of the node being imported.
  void import_nodes(const NodeProtos& nodes, NameScope& scope, const CallFrame& frame);
  void add_initializers(const onnx::GraphProto& graph, NameScope& scope, const std::string& prefix);
  /// Counts nodes that inlining adds; throws ModelError beyond Limits::max_inlined.
  void count_inlined(size_t nodes);
  /// `v`, which may belong to an enclosing graph, as a value of the graph under construction.
  Value here(Value v) const;
  Binding here(const Binding& binding) const;
  /// The type with a symbol for each unknown extent, because an unknown extent could never be shown
  /// equal to itself. The symbols start with `stem` and are added to `symbols`.
  Type named_extents(Type type, const std::string& stem,
                     std::unordered_set<std::string>* symbols = nullptr);
  Type named_extents(Value v) { return named_extents(v.type(), v.name()); }

  int64_t next_stream() override { return streams_++; }
  std::vector<Value> emit(const Call& call, const std::string& op, std::vector<Value> in,
                          Attrs attrs, int outputs) override;
  Value materialise(const Binding& binding) override;

 private:
  friend class OpenBody;

  void add_inputs(const onnx::GraphProto& graph, NameScope& scope);
  void import_node(const onnx::NodeProto& proto, NameScope& scope, const CallFrame& frame);
  /// Inlines the function that the node calls, or calls the handler of its operator.
  std::vector<Binding> dispatch(FileNode& node);
  /// Handles the Constant node of this name if it may be a weight, see Weights. Returns true inside
  /// bodies: the node then keeps its name.
  bool lift_constant(const std::string& name, Binding* result);
  void bind(const FileNode& node, const std::vector<Binding>& results, size_t first_new);
  /// Emits the operator on float32 copies of 16-bit operands, and rounds its results once.
  std::vector<Value> emit_in_float32(const Call& call, const std::string& op, std::vector<Value> in,
                                     Attrs attrs, int outputs);

  const CheckedModel& model_;
  const ImportOptions& options_;
  Graph* graph_;
  OpenBody* body_ = nullptr;  // the body that is open; null: none
  NamesRead read_;
  Weights weights_;
  std::unordered_map<std::string, const onnx::FunctionProto*> functions_;
  const CallFrame* frame_ = nullptr;  // of the node being imported
  size_t symbols_ = 0;                // symbols made so far for unknown extents
  size_t imported_ = 0;
  size_t inlined_ = 0;  // counts towards Limits::max_inlined
  int64_t streams_ = 0;
};

}  // namespace steep
