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
#include "model/read/model_file.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "ops/op_def.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The tensor of a Constant node; null for another node, and for a constant in another form.
const onnx::TensorProto* constant_of(const onnx::NodeProto& node) {
  if (!is(node, "Constant") || node.output_size() != 1) return nullptr;
  const auto* value = find_attribute(node, "value");
  return value != nullptr && value->has_t() ? &value->t() : nullptr;
}

/// The names that the bodies of a node read. Names that a body defines itself do no harm.
void add_body_reads(const onnx::NodeProto& node, std::vector<std::string>& names) {
  const auto add_body = [&](const onnx::GraphProto& body) {
    for (const auto& inner : body.node()) {
      names.insert(names.end(), inner.input().begin(), inner.input().end());
      add_body_reads(inner, names);
    }
    for (const auto& output : body.output()) names.push_back(output.name());
  };
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) add_body(attribute.g());
    for (const auto& body : attribute.graphs()) add_body(body);
  }
}

/// Whether the node is ONNX Runtime's product with packed weights. (If the file defines a function
/// of this name, the function is called, and an adapter is beside it all the same.)
bool multiplies_packed(const onnx::NodeProto& node) {
  return node.op_type() == "MatMulNBits" && node.domain() == "com.microsoft";
}

constexpr int kInBody = -1;

/// How a value that is made of a weight differs from it.
struct Form {
  std::string name;
  DType dtype = DType::undefined;
  bool transposed = false;
  bool converted = false;  // it has been cast or dequantised
};

class Finder {
 public:
  explicit Finder(const onnx::GraphProto& graph) : graph_(graph) {
    for (int i = 0; i < graph.node_size(); ++i) {
      const onnx::NodeProto& node = graph.node(i);
      for (int j = 0; j < node.input_size(); ++j) readers_[node.input(j)].emplace_back(i, j);
      std::vector<std::string> inside;
      add_body_reads(node, inside);
      for (const std::string& name : inside) readers_[name].emplace_back(i, kInBody);
      for (const std::string& name : node.output()) names_.insert(name);
      if (const auto* tensor = constant_of(node)) tensors_.emplace(node.output(0), tensor);
    }
    for (const auto& input : graph.input()) names_.insert(input.name());
    for (const auto& output : graph.output()) outputs_.insert(output.name());
    for (const auto& tensor : graph.initializer()) {
      names_.insert(tensor.name());
      tensors_.insert_or_assign(tensor.name(), &tensor);
    }
  }

  std::vector<Adapter> run() const {
    std::vector<Adapter> result;
    for (const auto& tensor : graph_.initializer()) result.push_back(look_at(tensor.name()));
    for (const auto& node : graph_.node()) {
      if (constant_of(node) != nullptr) result.push_back(look_at(node.output(0)));
    }
    return result;
  }

 private:
  Adapter look_at(const std::string& weight) const {
    const onnx::TensorProto& tensor = *tensors_.at(weight);
    Adapter adapter{.weight = weight};
    if (tensor.dims_size() != 2 && !is_packed(weight)) {
      adapter.why_not = fmt::format("is no matrix, but has {} axes", tensor.dims_size());
      return adapter;
    }
    if (tensor.dims_size() == 2) {
      adapter.rows = tensor.dims(0);
      adapter.columns = tensor.dims(1);
    }
    std::vector<Form> open{{.name = weight, .dtype = static_cast<DType>(tensor.data_type())}};
    std::string other;                     // a use that is not a right operand
    std::unordered_set<std::string> seen;  // a damaged file may have a cycle
    for (size_t at = 0; at < open.size(); ++at) {
      const Form form = open[at];
      if (form.name.empty() || !seen.insert(form.name).second) continue;
      if (outputs_.count(form.name) != 0) other = "is an output of the model";
      const auto readers = readers_.find(form.name);
      if (readers == readers_.end()) continue;
      for (const auto& [node, input] : readers->second) {
        std::string why = follow(form, node, input, adapter, open);
        if (other.empty()) other = std::move(why);
      }
    }
    if (!adapter.why_not.empty()) return adapter;
    adapter.why_not =
        adapter.products.empty()
            ? "is no right operand of a MatMul, Gemm or MatMulNBits of the model's graph"
            : std::move(other);
    if (adapter.transposed) std::swap(adapter.rows, adapter.columns);
    for (const std::string& name : {adapter.a(), adapter.b()}) {
      if (adapter.why_not.empty() && names_.count(name) != 0)
        adapter.why_not = fmt::format("has an adapter in the file, '{}'", quote(name));
    }
    return adapter;
  }

  /// Looks at one reader of a form of the weight. Returns why it rules an adapter out, or "".
  std::string follow(const Form& form, int number, int input, Adapter& adapter,
                     std::vector<Form>& open) const {
    const onnx::NodeProto& node = graph_.node(number);
    const auto reads = [&](const char* how) {
      return fmt::format("is read {} '{}' ({})", how, quote(display_name(node)),
                         quote(node.op_type()));
    };
    if (input == kInBody) return reads("in a body of");
    if (node.output_size() == 0) return reads("by");
    if (input == 1 && (is(node, "MatMul") || is(node, "Gemm"))) {
      take_product(form, number, adapter);
      return "";
    }
    if (input == 1 && multiplies_packed(node) && form.name == adapter.weight) {
      take_packed(number, adapter);
      return "";
    }
    Form next = form;
    if (input != 0) return reads("by");
    next.name = node.output(0);
    if (is(node, "Transpose")) {
      const auto* perm = find_attribute(node, "perm");
      if (perm == nullptr || perm->ints_size() == 0 || perm->ints(0) == 1)
        next.transposed = !next.transposed;
    } else if (is(node, "Cast")) {
      next.dtype = static_cast<DType>(integer(node, "to"));
      next.converted = true;
    } else if (is(node, "DequantizeLinear")) {
      next.dtype = dequantised(node);
      next.converted = true;
    } else if (!is(node, "Identity")) {
      return reads("by");
    }
    open.push_back(std::move(next));
    return "";
  }

  DType dequantised(const onnx::NodeProto& node) const {
    const int64_t dtype = integer(node, "output_dtype");
    return dtype != 0 ? static_cast<DType>(dtype) : dtype_of_input(node, 1);
  }

  /// Of a tensor of the file; undefined for other values.
  DType dtype_of_input(const onnx::NodeProto& node, int input) const {
    const auto found = tensors_.find(node.input_size() > input ? node.input(input) : "");
    return found == tensors_.end() ? DType::undefined
                                   : static_cast<DType>(found->second->data_type());
  }

  bool is_packed(const std::string& weight) const {
    const auto readers = readers_.find(weight);
    return readers != readers_.end() &&
           std::any_of(readers->second.begin(), readers->second.end(), [&](const auto& reader) {
             return reader.second == 1 && multiplies_packed(graph_.node(reader.first));
           });
  }

  /// The weight holds packed numbers of a matrix whose extents are attributes of the product.
  void take_packed(int number, Adapter& adapter) const {
    const onnx::NodeProto& node = graph_.node(number);
    const onnx::TensorProto& tensor = *tensors_.at(adapter.weight);
    const int64_t k = integer(node, "K"), n = integer(node, "N"), bits = integer(node, "bits", 4),
                  block = integer(node, "block_size");
    // The importer says more about attributes that do not fit. Here they must not ask for memory.
    const bool fits = k > 0 && n > 0 && block > 0 && (bits == 2 || bits == 4 || bits == 8) &&
                      tensor.dims_size() == 3 && tensor.dims(0) == n &&
                      tensor.dims(1) == (k - 1) / block + 1 && block <= kFar &&
                      tensor.dims(2) == block * bits / 8;
    const DType dtype = dtype_of_input(node, 2);
    if (!fits) {
      adapter.why_not = fmt::format(
          "does not have the extents that '{}' gives it by K, N, bits "
          "and block_size",
          quote(display_name(node)));
    } else if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
      adapter.why_not =
          fmt::format("has scales of another type than floats: '{}'", quote(display_name(node)));
    } else if (!adapter.products.empty() &&
               (k != adapter.rows || n != adapter.columns || dtype != adapter.dtype)) {
      adapter.why_not = "is multiplied as two matrices";
    }
    adapter.rows = k;
    adapter.columns = n;
    adapter.dtype = dtype;
    adapter.merges = false;
    adapter.products.push_back(number);
  }

  void take_product(const Form& form, int number, Adapter& adapter) const {
    const onnx::NodeProto& node = graph_.node(number);
    const bool turned = is(node, "Gemm") && integer(node, "transB") != 0;
    const bool transposed = form.transposed != turned;
    if (form.dtype != DType::f32 && form.dtype != DType::f64 && form.dtype != DType::f16 &&
        form.dtype != DType::bf16) {
      adapter.why_not =
          fmt::format("has products of another type than floats: '{}'", quote(display_name(node)));
    } else if (!adapter.products.empty() && transposed != adapter.transposed) {
      adapter.why_not = "is multiplied both as it is and transposed";
    } else if (!adapter.products.empty() && form.dtype != adapter.dtype) {
      adapter.why_not = "is multiplied in two types";
    }
    adapter.dtype = form.dtype;
    adapter.transposed = transposed;
    adapter.merges = adapter.merges && !form.converted;
    adapter.products.push_back(number);
  }

  const onnx::GraphProto& graph_;
  std::unordered_map<std::string, std::vector<std::pair<int, int>>> readers_;  // node, input
  std::unordered_map<std::string, const onnx::TensorProto*> tensors_;
  std::unordered_set<std::string> names_, outputs_;
};

/// Inserts the nodes of adapters behind the products.
class Inserter {
 public:
  Inserter(onnx::ModelProto& model, DetachedModel& data)
      : model_(model), graph_(*model.mutable_graph()), data_(data) {
    for (const auto& tensor : graph_.initializer()) names_.insert(tensor.name());
    for (const auto& input : graph_.input()) names_.insert(input.name());
    for (const auto& node : graph_.node()) {
      names_.insert(node.input().begin(), node.input().end());
      names_.insert(node.output().begin(), node.output().end());
    }
  }

  void run(std::span<const Adapter> adapters, const std::map<std::string, Tensor>& values) {
    std::unordered_map<int, const Adapter*> products;
    for (const Adapter& adapter : adapters) {
      for (const std::string& name : {adapter.a(), adapter.b()})
        add_initializer(name, values.at(name));
      for (const int node : adapter.products) products.emplace(node, &adapter);
    }
    google::protobuf::RepeatedPtrField<onnx::NodeProto> before;
    before.Swap(graph_.mutable_node());
    for (int i = 0; i < before.size(); ++i) {
      onnx::NodeProto& node = *graph_.add_node();
      node.Swap(before.Mutable(i));
      if (const auto found = products.find(i); found != products.end()) {
        const onnx::NodeProto product = node;
        node.set_output(0, unused(product.output(0) + "/lora_base"));
        adapt(product, node.output(0), *found->second);
      }
    }
  }

 private:
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
        onnx::AttributeProto& attribute = *graph_.mutable_node()->rbegin()->add_attribute();
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
    onnx::NodeProto& node = *graph_.add_node();
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

void save(const onnx::ModelProto& proto, DetachedModel& model) {
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) throw ModelError("The model cannot be written.");
  model.set_skeleton(std::move(bytes));
}

}  // namespace

std::vector<Adapter> find_adapters(const DetachedModel& model) {
  const onnx::ModelProto proto = parse_known(model.skeleton());
  return Finder(proto.graph()).run();
}

std::set<std::string> quantised_weights(const DetachedModel& model) {
  const onnx::ModelProto proto = parse_known(model.skeleton());
  std::set<std::string> unpacked, result;
  for (const auto& node : proto.graph().node()) {
    if (is(node, "DequantizeLinear") && node.input_size() > 0) unpacked.insert(node.input(0));
    if (multiplies_packed(node) && node.input_size() > 1) unpacked.insert(node.input(1));
  }
  for (const auto& tensor : proto.graph().initializer()) {
    if (unpacked.count(tensor.name()) != 0) result.insert(tensor.name());
  }
  return result;
}

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
  std::unordered_map<std::string, onnx::TensorProto*> tensors;
  for (auto& node : *proto.mutable_graph()->mutable_node()) {
    if (constant_of(node) == nullptr) continue;
    for (auto& attribute : *node.mutable_attribute()) {
      if (attribute.name() == "value") tensors.emplace(node.output(0), attribute.mutable_t());
    }
  }
  for (auto& tensor : *proto.mutable_graph()->mutable_initializer())
    tensors.insert_or_assign(tensor.name(), &tensor);
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
