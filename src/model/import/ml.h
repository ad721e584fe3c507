// Operators of ONNX's domain ai.onnx.ml, which exporters of scikit-learn write. Each is imported as
// a function of plain operators. The numbers that such an operator learned are attributes; they
// become initializers, so that they are trained, named and saved like all others, and
// model/export/ml_weights.h writes them back. There is one file per family: ml_linear.cc,
// ml_svm.cc, ml_features.cc, ml_labels.cc. Their specification: ONNX's docs/Operators-ml.md.
#pragma once

#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contrib/contrib.h"
#include "model/import/handlers.h"
#include "steep/tensor.h"

namespace steep {

inline constexpr std::string_view kMlDomain = "ai.onnx.ml";

/// An attribute that becomes an initializer of the model's graph.
struct MlWeight {
  int node = 0;           ///< index of the node in the graph
  std::string attribute;  ///< floats
  std::string name;       ///< "<node>.<attribute>", unique in the graph
  Dims dims;
  /// The attribute holds the negated numbers in front of these: the first of two classes.
  bool mirrored = false;
};

/// The weights of the model's graph, in the order of its nodes. Throws ModelError for attributes
/// that do not fit each other.
std::vector<MlWeight> ml_weights(const onnx::GraphProto& graph);

/// Prepares a model for the handlers: adds the weights as initializers, notes their names at the
/// nodes, and sets ZipMap aside, so that its output is the tensor of scores. Returns the names of
/// values that are strings, each with that of what makes it. Does nothing without such operators.
std::map<std::string, std::string> prepare_ml(onnx::ModelProto* model);

/// The names of attributes that are not trained, "<node>.<attribute>", with the reason.
std::vector<std::pair<std::string, std::string>> ml_settings(const onnx::GraphProto& graph);

/// The operators that Steep imports.
std::vector<std::string_view> ml_op_names();
/// Whether this is one of them.
bool is_ml(const onnx::NodeProto& node);
/// Why an operator of the domain is not imported, with the remedy.
std::string_view why_ml_is_refused(std::string_view op);

/// Attributes of a node, with their defaults. All throw ModelError, with the node and its operator,
/// for an attribute of another kind.
class MlNode {
 public:
  explicit MlNode(const onnx::NodeProto& node) : node_(node) {}

  const onnx::NodeProto& proto() const { return node_; }
  std::vector<float> floats(std::string_view name) const;
  Ints ints(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  float real(std::string_view name, float otherwise) const;
  std::string text(std::string_view name, std::string_view otherwise) const;
  size_t string_count(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy = "Export the model again.") const;

 private:
  const onnx::AttributeProto* find(std::string_view name) const;
  const onnx::AttributeProto* find(std::string_view name,
                                   onnx::AttributeProto::AttributeType type) const;

  const onnx::NodeProto& node_;
};

/// A weight of one node: what MlWeight has besides node and name.
struct MlPart {
  std::string attribute;
  Dims dims;
  bool mirrored = false;
};
using MlParts = std::vector<MlPart>;

// The weights of the operators that have some.
MlParts linear_regressor_parts(const MlNode& node);
MlParts linear_classifier_parts(const MlNode& node);
MlParts svm_regressor_parts(const MlNode& node);
MlParts svm_classifier_parts(const MlNode& node);

/// The function for a node, in the making: inputs of the node are named "x", "x1", …, and weights
/// by their attributes.
class MlFunction {
 public:
  MlFunction(Importer& importer, FileNode& node);

  const MlNode& node() const { return node_; }
  ContribBody& body() { return body_; }
  /// The type of an input of the node. Throws ModelError if it is missing or no tensor.
  const Type& type(size_t input) const;
  /// The value of an input.
  Value value(size_t input) const { return inputs_.at(input).value(); }
  void set_value(size_t input, Value value) { inputs_.at(input) = Binding(value); }
  /// Adds the weight of this attribute as an input; false if the node has none.
  bool add_weight(const std::string& attribute);
  /// Adds a constant, float [n] or [rows, n].
  void floats(const std::string& name, const std::vector<float>& values, int64_t rows = 0);
  /// Whether some node or output reads this output of the node.
  bool wants(int output) const;
  /// Throws ShapeError unless `input` has `count` columns, and returns the name of the value that
  /// has them: where they are not known, a check at run time is added.
  std::string columns(size_t input, const std::string& name, int64_t count);
  /// Inlines the function with these outputs.
  Bindings inlined(const std::vector<std::string>& outputs);

 private:
  Importer& importer_;
  FileNode& file_node_;
  MlNode node_;
  onnx::FunctionProto function_;
  ContribBody body_;
  std::vector<Binding> inputs_;
};

/// The import of a node of the domain.
Bindings import_ml(Importer& importer, FileNode& node);

// The operators.
using MlImport = Bindings (*)(MlFunction& f);
Bindings import_linear_regressor(MlFunction& f);
Bindings import_linear_classifier(MlFunction& f);
Bindings import_svm_regressor(MlFunction& f);
Bindings import_svm_classifier(MlFunction& f);
Bindings import_scaler(MlFunction& f);
Bindings import_normalizer(MlFunction& f);
Bindings import_imputer(MlFunction& f);
Bindings import_binarizer(MlFunction& f);
Bindings import_feature_vectorizer(MlFunction& f);
Bindings import_array_feature_extractor(MlFunction& f);

/// The number of classes of a classifier. Throws ModelError unless there are at least two.
int64_t class_count(const MlNode& node);
/// Adds "label", the entry of classlabels_ints at "i"; returns its name, or "" if no node reads it.
std::string add_label(MlFunction& f);

}  // namespace steep
