// The nodes of a checked model, one after the other, into a Graph: names are resolved, and each
// node goes to the handler of its operator (handlers.h), which writes with what is here.
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
#include "model/raise/call.h"

namespace steep {

class OpenBody;

using NodeProtos = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

/// What the names of a graph stand for, and of the graphs around it.
struct NameScope {
  std::unordered_map<std::string, Binding> names{};
  const NameScope* outer = nullptr;

  /// nullptr when nothing has that name; a null binding for an optional input that a call left out.
  const Binding* find(const std::string& name) const;
};

/// Whose nodes are being imported: the model's, or those of one call of a function.
struct CallFrame {
  int64_t opset = 0;                              ///< of the default domain
  std::string prefix{};                           ///< in front of the nodes' names
  const onnx::FunctionProto* function = nullptr;  ///< null for graphs
  std::unordered_map<std::string, const onnx::AttributeProto*> arguments{};
  const CallFrame* caller = nullptr;
  int depth = 0;

  /// The attribute, or the function's argument that it refers to; nullptr where the call leaves
  /// that out.
  const onnx::AttributeProto* resolve(const onnx::AttributeProto& attribute) const;
};

/// A node of the file where it stands: what a handler is given beside the importer.
struct FileNode {
  const onnx::NodeProto& proto;
  std::vector<Binding> inputs;  ///< of the graph under construction; the last one is there
  NameScope& scope;
  const CallFrame& frame;

  std::string name() const;
  /// The graph that is this attribute. Throws ModelError where there is none.
  const onnx::GraphProto& body(const char* attribute) const;
};

/// Names that something in the file reads. Outputs that nothing reads need not be there.
class NamesRead {
 public:
  explicit NamesRead(const onnx::ModelProto& model);

  bool contains(const std::string& name) const { return names_.count(name) != 0; }
  /// False where it was there.
  bool insert(const std::string& name) { return names_.insert(name).second; }
  void erase(const std::string& name) { names_.erase(name); }

 private:
  void note(const NodeProtos& nodes);

  std::unordered_set<std::string> names_;
};

class Importer final : public GraphWriter {
 public:
  Importer(const CheckedModel& model, Graph& graph, const ImportOptions& options);

  /// Inputs, initializers, nodes, outputs.
  void run();

  // --- what handlers read -----------------------------------------------------------------------

  const CheckedModel& model() const { return model_; }
  const Limits& limits() const { return options_.limits; }
  bool training() const { return options_.training; }
  /// The model's, and what its bodies hold.
  const Weights& weights() const { return weights_; }
  Weights& weights() { return weights_; }
  NamesRead& names_read() { return read_; }
  /// A function of the model by function_id(); nullptr for another.
  const onnx::FunctionProto* find_function(const std::string& id) const;

  // --- what they write with ---------------------------------------------------------------------

  /// Under construction: the model's, or that of the innermost open body (body.h).
  Graph& graph() const { return *graph_; }
  /// Adds the nodes. Errors that came from below without a place get the node's.
  void import_nodes(const NodeProtos& nodes, NameScope& scope, const CallFrame& frame);
  void add_initializers(const onnx::GraphProto& graph, NameScope& scope, const std::string& prefix);
  /// Counts what no node of the file stands for; throws ModelError beyond Limits::max_inlined.
  void count_inlined(size_t nodes);
  /// `v`, which may belong to a graph further out, in the graph under construction.
  Value here(Value v) const;
  Binding here(const Binding& binding) const;
  /// The type with a name for each extent that has none, which could never be shown equal to
  /// itself. They begin with `stem`, and are added to `made`.
  Type named_extents(Type type, const std::string& stem,
                     std::unordered_set<std::string>* made = nullptr);
  Type named_extents(Value v) { return named_extents(v.type(), v.name()); }

  int64_t next_stream() override { return streams_++; }
  std::vector<Value> emit(const Call& call, const std::string& op, std::vector<Value> in,
                          Attrs attrs, int outputs) override;
  Value materialise(const Binding& binding) override;

 private:
  friend class OpenBody;

  void add_inputs(const onnx::GraphProto& graph, NameScope& scope);
  void import_node(const onnx::NodeProto& proto, NameScope& scope, const CallFrame& frame);
  /// By the function that the node calls, or by its operator's handler.
  std::vector<Binding> dispatch(FileNode& node);
  /// The Constant node of this name may be a weight, see Weights. True within bodies: it keeps the
  /// name that it has.
  bool lift_constant(const std::string& name, Binding* result);
  void bind(const FileNode& node, const std::vector<Binding>& results, size_t first_new);

  const CheckedModel& model_;
  const ImportOptions& options_;
  Graph* graph_;
  OpenBody* body_ = nullptr;  // whose graph that is; null: the model's
  NamesRead read_;
  Weights weights_;
  std::unordered_map<std::string, const onnx::FunctionProto*> functions_;
  const CallFrame* frame_ = nullptr;  // of the node being imported
  size_t symbols_ = 0;                // made so far for extents without a name
  size_t imported_ = 0;
  size_t inlined_ = 0;  // of Limits::max_inlined
  int64_t streams_ = 0;
};

}  // namespace steep
