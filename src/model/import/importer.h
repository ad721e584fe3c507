// The nodes of a checked model, one after the other, into a Graph: names are resolved, functions
// and constant branches inlined, opsets raised (raise.h).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/import/check.h"
#include "model/import/import.h"
#include "model/raise/call.h"
#include "ops/op_def.h"

namespace steep {

constexpr size_t kBodyNodes = 16;  ///< what a graph of its own costs, in nodes

/// A loop as the file has it: Loop or Scan.
struct LoopParts {
  const onnx::NodeProto& node;
  const onnx::GraphProto& body;
  Value trips{};      ///< null: as many as there are slices, or as the condition allows
  Value condition{};  ///< null: true
  std::vector<Value> carried{};
  std::vector<Value> scanned{};  ///< cut into slices along in_axes
  Ints in_axes{}, in_directions{}, out_axes{}, out_directions{};
  bool is_scan = false;  ///< the body has neither counter nor condition
};

class Importer final : public GraphWriter {
 public:
  Importer(const CheckedModel& model, Graph& graph, const ImportOptions& options);

  /// Inputs, initializers, nodes, outputs.
  void run();
  /// After run(): ImportedModel::initializers of bodies, and ImportedModel::inside.
  const std::vector<std::string>& lifted() const { return lifted_names_; }
  const std::map<std::string, std::string>& inside() const { return inside_; }

  int64_t next_stream() override { return streams_++; }
  std::vector<Value> emit(const Call& call, const std::string& op, std::vector<Value> in,
                          Attrs attrs, int outputs) override;
  Value materialise(const Binding& binding) override;

 private:
  /// A body of control flow under construction. Values of the graphs around it come in as inputs,
  /// constants that are no parameters as constants.
  struct OpenBody {
    explicit OpenBody(Importer& importer);
    ~OpenBody();
    OpenBody(const OpenBody&) = delete;
    OpenBody& operator=(const OpenBody&) = delete;

    /// By input of the body past the first `own`: the value outside, in the enclosing graph.
    std::vector<Value> captured(size_t own) const;

    Importer& importer;
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();
    Graph* outer;
    OpenBody* outside;
    std::unordered_map<uint32_t, Value> inner_of;  // by id in the enclosing graph
    std::unordered_map<uint32_t, Value> outer_of;  // by id of an input
  };
  /// While the body that is this attribute of the node is imported. A null attribute: a function.
  struct InBody {
    InBody(Importer& importer, const onnx::NodeProto& node, const char* attribute);
    ~InBody() { importer.body_path_ = std::move(before); }
    InBody(const InBody&) = delete;
    InBody& operator=(const InBody&) = delete;
    Importer& importer;
    std::optional<std::string> before;
  };
  struct ImportedBody {
    std::shared_ptr<Graph> graph;
    std::vector<Value> captured;
  };

  struct Scope {
    std::unordered_map<std::string, Binding> names;
    const Scope* outer = nullptr;
  };
  /// Whose nodes are being imported: the model, or one call of a function.
  struct Frame {
    int64_t opset = 0;
    std::string prefix;
    const onnx::FunctionProto* function = nullptr;  ///< null for graphs
    std::unordered_map<std::string, const onnx::AttributeProto*> arguments;
    const Frame* caller = nullptr;
    int depth = 0;
  };

  void add_inputs(const onnx::GraphProto& graph, Scope& scope);
  void add_initializers(const onnx::GraphProto& graph, Scope& scope, const std::string& prefix);
  /// What an initializer or Constant node of the body that is being imported is to the model: a
  /// constant of the model's graph, under the name by which users know it. Null: it stays within.
  Value lift(const std::string& name, const Tensor& tensor, bool constant_node);
  /// Which names bodies read as settings of operators.
  void note_settings(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);
  void import_nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, Scope& scope,
                    const Frame& frame);
  /// Counts what no node of the file stands for; throws ModelError beyond max_inlined.
  void count_inlined(size_t nodes);
  void import_node(const onnx::NodeProto& node, Scope& scope, const Frame& frame);
  std::vector<Binding> import_call(const onnx::NodeProto& node, const onnx::FunctionProto& function,
                                   const std::vector<Binding>& inputs, const Frame& frame,
                                   std::string prefix, const Scope* around = nullptr);
  std::vector<Binding> import_function(const onnx::NodeProto& node,
                                       const onnx::FunctionProto& function,
                                       const std::vector<Binding>& inputs, const Frame& frame);
  std::vector<Binding> import_contrib(const onnx::NodeProto& node,
                                      const std::vector<Binding>& inputs, const Frame& frame);
  std::vector<Binding> import_offered(const onnx::NodeProto& node,
                                      const onnx::FunctionProto& function,
                                      const std::vector<Binding>& inputs, const Frame& frame);
  std::vector<Binding> import_if(const onnx::NodeProto& node, const Binding& condition,
                                 const Scope& scope, const Frame& frame);
  std::vector<Binding> take_branch(const onnx::GraphProto& branch, const Scope& scope,
                                   const Frame& frame);
  ImportedBody import_branch(const onnx::GraphProto& branch, const Scope& scope,
                             const Frame& frame);
  std::vector<Binding> import_loop(const onnx::NodeProto& node, const std::vector<Binding>& inputs,
                                   const Scope& scope, const Frame& frame);
  std::vector<Binding> import_scan(const onnx::NodeProto& node, const std::vector<Binding>& inputs,
                                   const Scope& scope, const Frame& frame);
  std::vector<Binding> import_batched_scan(const onnx::NodeProto& node,
                                           const std::vector<Binding>& inputs, const Scope& scope,
                                           const Frame& frame);
  std::vector<Binding> import_with_bodies(const onnx::NodeProto& node,
                                          const std::vector<Binding>& inputs, const Scope& scope,
                                          const Frame& frame);
  std::vector<Value> add_loop(const LoopParts& parts, const Scope& scope, const Frame& frame);
  const onnx::GraphProto& body_of(const onnx::NodeProto& node, const char* name,
                                  const Frame& frame) const;
  void body_results(const onnx::GraphProto& body, const Scope& scope);
  /// `v`, which may belong to a graph further out, in the graph under construction.
  Value here(Value v);
  Binding here(const Binding& binding);
  static Value capture(OpenBody& body, Value v);
  /// The value's type, in a body. An extent without a name could never be shown equal to itself.
  Type named_extents(Value v);
  std::vector<Binding> import_gradient(const onnx::NodeProto& node,
                                       const std::vector<Binding>& inputs, Scope& scope);
  std::vector<Binding> raise_node(const onnx::NodeProto& node, std::vector<Binding> inputs,
                                  const Frame& frame);
  bool function_body(const Call& call, const std::string& op, const std::vector<Value>& in,
                     const Attrs& attrs, int outputs, onnx::NodeProto* node,
                     onnx::FunctionProto* body) const;
  void note_reads(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes);
  void bind(const onnx::NodeProto& node, const std::vector<Binding>& results, size_t first_new,
            Scope& scope, const Frame& frame);
  /// nullptr when nothing has that name; a null binding for an optional input that a call left out.
  static const Binding* find(const std::string& name, const Scope& scope);
  static const onnx::AttributeProto* resolve(const onnx::AttributeProto& attribute,
                                             const Frame& frame);

  const CheckedModel& model_;
  Graph* const root_;         // the model's
  Graph* graph_;              // under construction: the model's, or that of a body
  OpenBody* body_ = nullptr;  // whose graph that is; null: the model's
  const Limits& limits_;
  std::unordered_set<std::string> read_;  // names that something in the file reads
  const std::set<std::string>& fed_;      // inputs with a default, to be inputs
  const std::set<std::string>& states_;   // initializers that change
  const std::set<std::string>& named_;    // ImportOptions::named
  // Of the body being imported, see model/read/body_names.h; none in functions.
  std::optional<std::string> body_path_;
  std::unordered_map<std::string, Value> lifted_;
  std::vector<std::string> lifted_names_;                  // in order
  std::map<std::string, std::string> inside_;              // ImportedModel::inside
  std::unordered_map<std::string, std::string> settings_;  // names that bodies' settings read: why
  bool training_;
  std::unordered_map<std::string, const onnx::FunctionProto*> functions_;
  const Frame* frame_ = nullptr;             // of the node being imported
  std::unordered_set<uint32_t> parameters_;  // ids of the model's initializers
  size_t symbols_ = 0;                       // made so far for extents without a name
  size_t imported_ = 0;
  size_t inlined_ = 0;  // of max_inlined

  int64_t streams_ = 0;
};

}  // namespace steep
