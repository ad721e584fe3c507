#include "model/import/ml.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "model/import/inline.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "runtime/counted.h"
#include "steep/error.h"

namespace steep {
namespace {

struct MlOp {
  std::string_view name;
  MlImport import;
  MlParts (*parts)(const MlNode&) = nullptr;
  std::vector<std::string_view> frozen{};  ///< attributes that are never trained
};

const std::vector<MlOp>& ml_ops() {
  static const std::vector<MlOp> ops = {
      {"ArrayFeatureExtractor", import_array_feature_extractor},
      {"Binarizer", import_binarizer},
      {"FeatureVectorizer", import_feature_vectorizer},
      {"Imputer", import_imputer, nullptr, {"imputed_value_floats"}},
      {"LinearClassifier", import_linear_classifier, linear_classifier_parts},
      {"LinearRegressor", import_linear_regressor, linear_regressor_parts},
      {"Normalizer", import_normalizer},
      {"SVMClassifier", import_svm_classifier, svm_classifier_parts, {"support_vectors"}},
      {"SVMRegressor", import_svm_regressor, svm_regressor_parts, {"support_vectors"}},
      {"Scaler", import_scaler, nullptr, {"offset", "scale"}},
  };
  return ops;
}

const MlOp* find_ml(const onnx::NodeProto& node) {
  if (node.domain() != kMlDomain) return nullptr;
  const auto& ops = ml_ops();
  const auto at = std::find_if(ops.begin(), ops.end(),
                               [&](const MlOp& op) { return op.name == node.op_type(); });
  return at == ops.end() ? nullptr : &*at;
}

/// The metadata of a node that holds the name of a weight.
constexpr std::string_view kKey = "steep.ml.";
std::string key_of(const std::string& attribute) { return std::string(kKey) + attribute; }

/// Removes metadata of these names from the file.
void clear_keys(onnx::GraphProto* graph) {
  for (auto& node : *graph->mutable_node()) {
    auto* entries = node.mutable_metadata_props();
    for (int i = entries->size() - 1; i >= 0; --i) {
      if (entries->Get(i).key().starts_with(kKey)) entries->DeleteSubrange(i, 1);
    }
  }
}

/// Names that are taken in a graph.
std::unordered_set<std::string> names_in(const onnx::GraphProto& graph) {
  std::unordered_set<std::string> names;
  for (const auto& tensor : graph.initializer()) names.insert(tensor.name());
  for (const auto& sparse : graph.sparse_initializer()) names.insert(sparse.values().name());
  for (const auto& input : graph.input()) names.insert(input.name());
  for (const auto& node : graph.node()) names.insert(node.output().begin(), node.output().end());
  return names;
}

/// The first of "name", "name_2", "name_3", … that is not taken; takes it.
std::string free_name(const std::string& name, std::unordered_set<std::string>* taken) {
  std::string result = name;
  for (int i = 2; !taken->insert(result).second; ++i) result = fmt::format("{}_{}", name, i);
  return result;
}

void add_initializer(onnx::GraphProto* graph, const MlWeight& weight) {
  const std::vector<float> values = MlNode(graph->node(weight.node)).floats(weight.attribute);
  onnx::TensorProto* tensor = graph->add_initializer();
  tensor->set_name(weight.name);
  tensor->set_data_type(onnx::TensorProto::FLOAT);
  for (const int64_t extent : weight.dims) tensor->add_dims(extent);
  const size_t first = weight.mirrored ? values.size() / 2 : 0;
  for (size_t i = first; i < values.size(); ++i) tensor->add_float_data(values[i]);
}

/// Makes ZipMap, which names the columns of scores, hand on the scores.
void set_aside(onnx::NodeProto* zip_map, onnx::GraphProto* graph) {
  zip_map->set_domain("");
  zip_map->set_op_type("Identity");
  zip_map->clear_attribute();
  for (auto& output : *graph->mutable_output()) {
    if (zip_map->output_size() == 0 || output.name() != zip_map->output(0)) continue;
    output.mutable_type()->Clear();
    output.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  }
}

}  // namespace

std::vector<std::string_view> ml_op_names() {
  std::vector<std::string_view> names;
  for (const MlOp& op : ml_ops()) names.push_back(op.name);
  return names;
}

bool is_ml(const onnx::NodeProto& node) { return find_ml(node) != nullptr; }

std::string_view why_ml_is_refused(std::string_view op) {
  if (op.starts_with("TreeEnsemble")) {
    return "the splits of trees have no gradient; train trees with the library that made them";
  }
  return "it works on labels or categories; do this before the model, in the data";
}

std::vector<MlWeight> ml_weights(const onnx::GraphProto& graph) {
  std::vector<MlWeight> weights;
  std::unordered_set<std::string> taken;
  for (int i = 0; i < graph.node_size(); ++i) {
    const MlOp* op = find_ml(graph.node(i));
    if (op == nullptr || op->parts == nullptr) continue;
    if (taken.empty()) taken = names_in(graph);
    for (MlPart& part : op->parts(MlNode(graph.node(i)))) {
      const std::string name = fmt::format("{}.{}", display_name(graph.node(i)), part.attribute);
      weights.push_back({.node = i,
                         .attribute = std::move(part.attribute),
                         .name = free_name(name, &taken),
                         .dims = std::move(part.dims),
                         .mirrored = part.mirrored});
    }
  }
  return weights;
}

std::vector<std::pair<std::string, std::string>> ml_settings(const onnx::GraphProto& graph) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const auto& node : graph.node()) {
    const MlOp* op = find_ml(node);
    for (size_t i = 0; op != nullptr && i < op->frozen.size(); ++i) {
      settings.emplace_back(fmt::format("{}.{}", display_name(node), op->frozen[i]),
                            fmt::format("is a setting of {}", op->name));
    }
  }
  return settings;
}

std::map<std::string, std::string> prepare_ml(onnx::ModelProto* model) {
  std::map<std::string, std::string> strings;
  onnx::GraphProto* graph = model->mutable_graph();
  const auto& nodes = graph->node();
  if (std::none_of(nodes.begin(), nodes.end(),
                   [](const auto& node) { return node.domain() == kMlDomain; }))
    return strings;
  clear_keys(graph);
  for (const MlWeight& weight : ml_weights(*graph)) {
    add_initializer(graph, weight);
    auto* entry = graph->mutable_node(weight.node)->add_metadata_props();
    entry->set_key(key_of(weight.attribute));
    entry->set_value(weight.name);
  }
  for (auto& node : *graph->mutable_node()) {
    if (node.domain() != kMlDomain) continue;
    if (node.op_type() == "ZipMap" && node.input_size() == 1) set_aside(&node, graph);
    if (MlNode(node).string_count("classlabels_strings") > 0 && node.output_size() > 0) {
      strings.emplace(node.output(0), display_name(node));
    }
  }
  for (const auto& tensor : graph->initializer()) {
    if (tensor.data_type() == onnx::TensorProto::STRING)
      strings.emplace(tensor.name(), tensor.name());
  }
  if (default_opset(model->opset_import()) == 0) {  // what stands for ZipMap is of this domain
    onnx::OperatorSetIdProto& import = *model->add_opset_import();
    import.set_domain("");
    import.set_version(ContribBody::kOpset);
  }
  return strings;
}

// --- attributes ----------------------------------------------------------------------------------

const onnx::AttributeProto* MlNode::find(std::string_view name) const {
  const auto& list = node_.attribute();
  const auto at =
      std::find_if(list.begin(), list.end(), [&](const auto& a) { return a.name() == name; });
  return at == list.end() ? nullptr : &*at;
}

const onnx::AttributeProto* MlNode::find(std::string_view name,
                                         onnx::AttributeProto::AttributeType type) const {
  const onnx::AttributeProto* attribute = find(name);
  if (attribute == nullptr || (attribute->type() == type && attribute->ref_attr_name().empty()))
    return attribute;
  fail("An attribute is of another kind.", std::string(name) + " as the standard describes it",
       "another kind");
}

std::vector<float> MlNode::floats(std::string_view name) const {
  const auto* a = find(name, onnx::AttributeProto::FLOATS);
  if (a == nullptr) return {};
  return {a->floats().begin(), a->floats().end()};
}

Ints MlNode::ints(std::string_view name) const {
  const auto* a = find(name, onnx::AttributeProto::INTS);
  if (a == nullptr) return {};
  return {a->ints().begin(), a->ints().end()};
}

int64_t MlNode::integer(std::string_view name, int64_t otherwise) const {
  const auto* a = find(name, onnx::AttributeProto::INT);
  return a == nullptr ? otherwise : a->i();
}

float MlNode::real(std::string_view name, float otherwise) const {
  const auto* a = find(name, onnx::AttributeProto::FLOAT);
  return a == nullptr ? otherwise : a->f();
}

std::string MlNode::text(std::string_view name, std::string_view otherwise) const {
  const auto* a = find(name, onnx::AttributeProto::STRING);
  return a == nullptr ? std::string(otherwise) : quote(a->s());
}

size_t MlNode::string_count(std::string_view name) const {
  const onnx::AttributeProto* attribute = find(name);
  return attribute == nullptr ? 0 : static_cast<size_t>(attribute->strings_size());
}

void MlNode::fail(std::string what, std::string expected, std::string received,
                  std::string remedy) const {
  throw ModelError({.what = std::move(what),
                    .node = quote(display_name(node_)),
                    .op = quote(node_.op_type()),
                    .expected = std::move(expected),
                    .received = std::move(received),
                    .remedy = std::move(remedy)});
}

// --- functions -----------------------------------------------------------------------------------

MlFunction::MlFunction(Importer& importer, FileNode& node)
    : importer_(importer), file_node_(node), node_(node.proto), body_(&function_) {
  function_.set_domain("steep.ml");
  function_.set_name(node.proto.op_type());
  function_.add_opset_import()->set_version(ContribBody::kOpset);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    function_.add_input(i == 0 ? "x" : fmt::format("x{}", i));
    inputs_.emplace_back(importer.materialise(node.inputs[i]));
  }
}

const Type& MlFunction::type(size_t input) const {
  if (input >= inputs_.size()) {
    node_.fail("A node lacks an input.", fmt::format("input {}", input), "none");
  }
  const Type& type = inputs_[input].value().type();
  if (type.kind != Kind::tensor) {
    node_.fail("An input of a tensor operator is not a tensor.", "a tensor", to_string(type));
  }
  return type;
}

bool MlFunction::add_weight(const std::string& attribute) {
  const std::string key = key_of(attribute);
  for (const auto& entry : node_.proto().metadata_props()) {
    if (entry.key() != key) continue;
    const Binding* weight = file_node_.scope.find(entry.value());
    if (weight == nullptr) break;
    function_.add_input(attribute);
    inputs_.push_back(importer_.here(*weight));
    return true;
  }
  if (node_.floats(attribute).empty()) return false;
  node_.fail("An operator with weights is in a function, or in the body of a branch or loop.",
             "a node of the model's own graph", "a node inside of another",
             "Move it into the model's own graph.");
}

void MlFunction::floats(const std::string& name, const std::vector<float>& values, int64_t rows) {
  onnx::NodeProto* node = function_.add_node();
  node->set_op_type("Constant");
  node->add_output(name);
  onnx::AttributeProto* attribute = node->add_attribute();
  attribute->set_name("value");
  attribute->set_type(onnx::AttributeProto::TENSOR);
  onnx::TensorProto* tensor = attribute->mutable_t();
  tensor->set_data_type(onnx::TensorProto::FLOAT);
  if (rows != 0) tensor->add_dims(rows);
  tensor->add_dims(static_cast<int64_t>(values.size()) / std::max<int64_t>(rows, 1));
  for (const float value : values) tensor->add_float_data(value);
}

bool MlFunction::wants(int output) const {
  const auto& outputs = node_.proto().output();
  return output < outputs.size() && !outputs[output].empty() &&
         importer_.names_read().contains(outputs[output]);
}

std::string MlFunction::columns(size_t input, const std::string& name, int64_t count) {
  const Type& x = type(input);
  if (x.shape && !x.shape->empty() && x.shape->back().known()) {
    if (x.shape->back().value() == count) return name;
    throw ShapeError(ErrorParts{.what = "The columns of an input do not fit the operator.",
                                .node = quote(file_node_.name()),
                                .op = quote(node_.proto().op_type()),
                                .expected = counted(count, "column"),
                                .received = to_string(x),
                                .remedy = "Export the model again."});
  }
  body_.ints(name + "_shape", {0, count});
  body_.add(fmt::format("{0}_columns = Reshape ({0}, {0}_shape)", name));
  return name + "_columns";
}

Bindings MlFunction::inlined(const std::vector<std::string>& outputs) {
  for (const std::string& output : outputs) function_.add_output(output);
  onnx::NodeProto call;
  call.set_name(node_.proto().name());
  call.set_op_type(node_.proto().op_type());
  call.set_domain(function_.domain());
  return inline_function(importer_, {.node = call,
                                     .function = function_,
                                     .inputs = inputs_,
                                     .frame = file_node_.frame,
                                     .prefix = file_node_.name() + "/"});
}

Bindings import_ml(Importer& importer, FileNode& node) {
  MlFunction function(importer, node);
  function.type(0);
  return find_ml(node.proto)->import(function);
}

}  // namespace steep
