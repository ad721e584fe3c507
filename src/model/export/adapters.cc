// Edits the messages of the file, so that everything else in it stays as it is.
#include "model/export/adapters.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "data/convert.h"
#include "model/export/node_proto.h"
#include "model/export/scopes.h"
#include "model/read/model_file.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Inserts the nodes of adapters behind the products.
class Inserter {
 public:
  Inserter(onnx::ModelProto& model, DetachedModel& data)
      : model_(model),
        graph_(*model.mutable_graph()),
        data_(data),
        names_(all_names(model.graph())) {}

  void run(std::span<const Adapter> adapters, const std::map<std::string, Tensor>& values) {
    for (const Adapter& adapter : adapters) {
      for (const std::string& name : {adapter.a(), adapter.b()})
        add_initializer(name, values.at(name));
      for (const int node : adapter.products) products_.emplace(node, &adapter);
    }
    rewrite(graph_);
  }

 private:
  /// Numbers nodes as Scopes does.
  void rewrite(onnx::GraphProto& graph) {
    google::protobuf::RepeatedPtrField<onnx::NodeProto> before;
    before.Swap(graph.mutable_node());
    for (auto& old : before) {
      const auto found = products_.find(next_++);
      onnx::NodeProto& node = *graph.add_node();
      node.Swap(&old);
      for (auto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g()) rewrite(*attribute.mutable_g());
        for (auto& body : *attribute.mutable_graphs()) rewrite(body);
      }
      if (found == products_.end()) continue;
      const onnx::NodeProto product = node;
      node.set_output(0, unused(product.output(0) + "/lora_base"));
      into_ = &graph;
      adapt(product, node.output(0), *found->second);
    }
  }

  /// Adds the nodes whose sum with `base` is the result of the product.
  void adapt(const onnx::NodeProto& product, const std::string& base, const Adapter& adapter) {
    const std::string& y = product.output(0);
    std::string x = product.input(0);
    double factor = adapter.factor;
    if (is(product, "Gemm")) {
      if (const auto* alpha = find_attribute(product, "alpha"))
        factor *= static_cast<double>(alpha->f());
      if (integer(product, "transA") != 0) x = add("Transpose", {x}, y + "/lora_x");
    }
    std::string down = add("MatMul", {x, adapter.a()}, y + "/lora_down");
    if (factor != 1) {
      const std::string scale = scale_of(adapter, factor);
      down = add("Mul", {down, scale}, y + "/lora_scaled");
      if (default_opset(model_.opset_import()) < 7) {  // no broadcasting without this attribute
        onnx::AttributeProto& attribute = *into_->mutable_node()->rbegin()->add_attribute();
        attribute.set_name("broadcast");
        attribute.set_type(onnx::AttributeProto::INT);
        attribute.set_i(1);
      }
    }
    const std::string up = add("MatMul", {down, adapter.b()}, y + "/lora_up");
    add("Add", {base, up}, y);
  }

  std::string add(const char* op, const std::vector<std::string>& inputs,
                  const std::string& wanted) {
    const std::string output = op == std::string_view("Add") ? wanted : unused(wanted);
    onnx::NodeProto& node = *into_->add_node();
    node.set_op_type(op);
    node.set_name(output + "/lora");
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(output);
    return output;
  }

  std::string unused(std::string name) {
    while (!names_.insert(name).second) name += "_";
    return name;
  }

  std::string scale_of(const Adapter& adapter, double factor) {
    std::string& name = scales_[{adapter.weight, factor}];
    if (name.empty()) {
      name = unused(adapter.weight + ".lora_scale");
      add_initializer(name, convert(Tensor::scalar(factor), adapter.dtype, name));
    }
    return name;
  }

  void add_initializer(const std::string& name, const Tensor& value) {
    onnx::TensorProto& proto = *graph_.add_initializer();
    proto.set_name(name);
    data_.hold(&proto, value);
    names_.insert(name);
    if (model_.ir_version() >= 4) return;
    onnx::ValueInfoProto& input = *graph_.add_input();  // in old files each initializer is an input
    input.set_name(name);
    onnx::TypeProto::Tensor& type = *input.mutable_type()->mutable_tensor_type();
    type.set_elem_type(static_cast<int32_t>(value.dtype()));
    type.mutable_shape();
    for (const int64_t extent : value.dims())
      type.mutable_shape()->add_dim()->set_dim_value(extent);
  }

  onnx::ModelProto& model_;
  onnx::GraphProto& graph_;
  DetachedModel& data_;
  std::unordered_set<std::string> names_;
  std::unordered_map<int, const Adapter*> products_;
  int next_ = 0;                      // number of the next node
  onnx::GraphProto* into_ = nullptr;  // that nodes are added to
  std::map<std::pair<std::string, double>, std::string> scales_;
};

/// W + factor · A · B, summed in double precision.
Tensor merged(const Tensor& weight, const Adapter& adapter, const Tensor& a, const Tensor& b) {
  Tensor sum = convert(weight, DType::f64, adapter.weight).clone();
  const Tensor left = convert(a, DType::f64, adapter.a());
  const Tensor right = convert(b, DType::f64, adapter.b());
  const auto rows = static_cast<size_t>(adapter.rows), rank = static_cast<size_t>(adapter.rank),
             columns = static_cast<size_t>(adapter.columns);
  std::vector<double> row(columns);
  for (size_t i = 0; i < rows; ++i) {
    std::fill(row.begin(), row.end(), 0.0);
    for (size_t r = 0; r < rank; ++r) {
      const double factor = adapter.factor * left.data<double>()[i * rank + r];
      const double* from = right.data<double>() + r * columns;
      for (size_t j = 0; j < columns; ++j) row[j] += factor * from[j];
    }
    for (size_t j = 0; j < columns; ++j)
      sum.data<double>()[adapter.transposed ? j * rows + i : i * columns + j] += row[j];
  }
  return convert(sum, weight.dtype(), adapter.weight);
}

/// The tensors of a graph and of bodies in it, by the names that users see.
void add_tensors(onnx::GraphProto& graph, const std::string& path, const BodyNames& names,
                 std::unordered_map<std::string, onnx::TensorProto*>& tensors) {
  const auto add = [&](const std::string& name, onnx::TensorProto* tensor) {
    const std::string& shown = path.empty() ? name : names.of(path, name);
    if (!shown.empty()) tensors[shown] = tensor;
  };
  for (auto& node : *graph.mutable_node()) {
    const std::string inner = path + display_name(node) + "/";
    const bool constant = constant_of(node) != nullptr;
    for (auto& attribute : *node.mutable_attribute()) {
      if (constant && attribute.name() == "value") add(node.output(0), attribute.mutable_t());
      const std::string place = inner + attribute.name() + "/";
      if (attribute.has_g()) add_tensors(*attribute.mutable_g(), place, names, tensors);
      for (auto& body : *attribute.mutable_graphs()) add_tensors(body, place, names, tensors);
    }
  }
  for (auto& tensor : *graph.mutable_initializer()) add(tensor.name(), &tensor);
}

void save(const onnx::ModelProto& proto, DetachedModel& model) {
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) throw ModelError("The model cannot be written.");
  model.set_skeleton(std::move(bytes));
}

}  // namespace

void add_adapters(DetachedModel& model, std::span<const Adapter> adapters,
                  const std::map<std::string, Tensor>& values) {
  if (adapters.empty()) return;
  onnx::ModelProto proto = parse_known(model.skeleton());
  Inserter(proto, model).run(adapters, values);
  save(proto, model);
}

void merge_adapters(DetachedModel& model, std::span<const Adapter> adapters,
                    const std::map<std::string, Tensor>& values) {
  if (adapters.empty()) return;
  onnx::ModelProto proto = parse_known(model.skeleton());
  const BodyNames names(std::as_bytes(std::span(model.skeleton())));
  std::unordered_map<std::string, onnx::TensorProto*> tensors;
  add_tensors(*proto.mutable_graph(), "", names, tensors);
  for (const Adapter& adapter : adapters) {
    onnx::TensorProto& tensor = *tensors.at(adapter.weight);
    const std::optional<Tensor> weight = model.read(tensor);
    if (!weight) {
      throw ModelError(
          ErrorParts{.what = "An adapter cannot be merged: the data of its weight is not at hand.",
                     .node = quote(adapter.weight),
                     .expected = "a weight in the model, or in a file of its folder",
                     .remedy = "Export with the adapters beside: merge_adapters=False."});
    }
    const std::string name = tensor.name();
    const Tensor sum = merged(*weight, adapter, values.at(adapter.a()), values.at(adapter.b()));
    tensor.Clear();
    tensor.set_name(name);
    model.hold(&tensor, sum);
  }
  save(proto, model);
}

}  // namespace steep
