// Edits the messages of the file, because nearly all nodes stay unchanged.
#include "model/export/for_inference.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/export/node_proto.h"
#include "model/import/import.h"
#include "model/read/model_file.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "ops/op_def.h"
#include "runtime/memory.h"
#include "steep/error.h"
#include "steep/export.h"

namespace steep {
namespace {

double real(const onnx::NodeProto& node, std::string_view name, double otherwise) {
  const auto* a = find_attribute(node, name);
  return a == nullptr ? otherwise : static_cast<double>(a->f());
}

void erase_attribute(onnx::NodeProto& node, std::string_view name) {
  auto* list = node.mutable_attribute();
  for (int i = list->size() - 1; i >= 0; --i) {
    if (list->Get(i).name() == name) list->DeleteSubrange(i, 1);
  }
}

/// Numbers in double precision, with the dtype in which the file stores them.
struct Array {
  std::vector<double> values;
  Dims dims;
  DType dtype = DType::undefined;
};

Array widen(const Tensor& tensor) {
  Array a{{}, tensor.dims(), tensor.dtype()};
  if (a.dtype == DType::f32) {
    const auto* data = tensor.data<float>();
    a.values.assign(data, data + tensor.size());
  } else {
    const auto* data = tensor.data<double>();
    a.values.assign(data, data + tensor.size());
  }
  return a;
}

template <typename T>
Tensor narrowed(const Array& array) {
  Tensor tensor = Tensor::empty(array.dtype, array.dims);
  std::copy(array.values.begin(), array.values.end(), tensor.data<T>());
  return tensor;
}

Tensor narrow(const Array& array) {
  return array.dtype == DType::f32 ? narrowed<float>(array) : narrowed<double>(array);
}

/// y = x · factor + offset, per channel.
struct Affine {
  std::vector<double> factor, offset;
  size_t channels() const { return factor.size(); }
};

class Rewriter {
 public:
  explicit Rewriter(onnx::ModelProto& model, DetachedModel& data)
      : model_(model),
        graph_(*model.mutable_graph()),
        data_(data),
        opset_(default_opset(model.opset_import())) {
    count_readers(graph_);
    for (const auto& output : graph_.output()) ++readers_[output.name()];
    for (const auto& input : graph_.input()) inputs_.insert(input.name());
    for (int i = 0; i < graph_.initializer_size(); ++i) {
      initializers_.emplace(graph_.initializer(i).name(), i);
    }
  }

  void run() {
    freeze_all(*graph_.mutable_node(), opset_, true);
    for (auto& function : *model_.mutable_functions()) {
      freeze_all(*function.mutable_node(), default_opset(function.opset_import()), false);
    }
    bool multiplies = false;
    for (int i = 0; i < graph_.node_size(); ++i) {
      multiplies = multiplies || is(graph_.node(i), "MatMul");
      for (const auto& name : graph_.node(i).output()) makers_.emplace(name, i);
    }
    if (multiplies) infer_ranks();
    std::unordered_set<int> removals;
    for (int i = 0; i < graph_.node_size(); ++i) {
      if (is(graph_.node(i), "BatchNormalization") && fold(graph_.node(i))) removals.insert(i);
    }
    sweep(removals);
  }

 private:
  void count_readers(const onnx::GraphProto& graph) {
    for (const auto& node : graph.node()) {
      for (const auto& name : node.input()) ++readers_[name];
      for (const auto& attribute : node.attribute()) {
        std::vector<const onnx::GraphProto*> bodies;
        if (attribute.has_g()) bodies.push_back(&attribute.g());
        for (const auto& body : attribute.graphs()) bodies.push_back(&body);
        for (const auto* body : bodies) {
          count_readers(*body);
          for (const auto& output : body->output()) ++readers_[output.name()];
        }
      }
    }
  }

  int readers(const std::string& name) const {
    const auto it = readers_.find(name);
    return it == readers_.end() ? 0 : it->second;
  }
  void forget(const std::string& name) { --readers_[name]; }

  /// Switches every operator of these nodes, and of their bodies, to inference mode. `counted`:
  /// readers_ counts the readers of their values; values in functions are not counted.
  void freeze_all(google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, int64_t opset,
                  bool counted) {
    google::protobuf::RepeatedPtrField<onnx::NodeProto> frozen;
    for (auto& node : nodes) {
      for (auto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g()) freeze_all(*attribute.mutable_g()->mutable_node(), opset, counted);
        for (auto& body : *attribute.mutable_graphs())
          freeze_all(*body.mutable_node(), opset, counted);
      }
      if (is(node, "Dropout")) drop(node, opset, counted);
      onnx::NodeProto& copy = *frozen.Add();
      copy.Swap(&node);
      if (is(copy, "BatchNormalization")) freeze(copy, opset, counted, frozen);
    }
    nodes.Swap(&frozen);
  }

  /// Makes a Dropout whose mask nothing reads an Identity; switches the training mode of others
  /// off.
  void drop(onnx::NodeProto& node, int64_t opset, bool counted) {
    const bool masks = node.output_size() > 1 && !node.output(1).empty() &&
                       (!counted || readers(node.output(1)) > 0);
    const int kept = masks ? 2 : 1;
    while (node.input_size() > kept && (opset >= 12 || !masks)) {
      if (counted) forget(node.input(node.input_size() - 1));
      node.mutable_input()->RemoveLast();
    }
    if (masks) return;
    node.set_op_type("Identity");
    node.clear_attribute();
    node.mutable_output()->DeleteSubrange(1, node.output_size() - 1);
  }

  /// Switches training mode off: opset 14 and newer have an attribute for it, older opsets count
  /// outputs. Inference does not change the running statistics: their readers get the inputs
  /// instead.
  void freeze(onnx::NodeProto& node, int64_t opset, bool counted,
              google::protobuf::RepeatedPtrField<onnx::NodeProto>& frozen) {
    if (opset >= 14) erase_attribute(node, "training_mode");
    const std::vector<std::string> outputs(node.output().begin(), node.output().end());
    if (outputs.size() > 1) {
      node.mutable_output()->DeleteSubrange(1, static_cast<int>(outputs.size()) - 1);
    }
    const std::string name = display_name(node);
    const std::vector<std::string> inputs(node.input().begin(), node.input().end());
    for (size_t i = 1; i < outputs.size(); ++i) {
      if (outputs[i].empty() || (counted && readers(outputs[i]) == 0)) continue;
      if (i > 2 && !counted) continue;
      if (i > 2 || inputs.size() < 5) {
        throw ModelError(
            {.what = "A node reads batch statistics, which an inference model does not compute.",
             .node = quote(name),
             .op = "BatchNormalization",
             .expected = "readers of the result and the running statistics alone",
             .received = fmt::format("output {}, {}", i, quote(outputs[i])),
             .remedy = "Export the model without what reads these, or as it is: "
                       "for_inference=False."});
      }
      onnx::NodeProto& same = *frozen.Add();
      same.set_op_type("Identity");
      same.set_name(name + (i == 1 ? "/running_mean" : "/running_var"));
      same.add_input(inputs[i + 2]);
      same.add_output(outputs[i]);
      if (counted) ++readers_[inputs[i + 2]];
    }
  }

  /// A float32 or float64 constant that no input of the model can replace.
  std::optional<Array> constant(const std::string& name) const {
    const auto it = initializers_.find(name);
    if (it == initializers_.end() || inputs_.count(name) != 0) return std::nullopt;
    const onnx::TensorProto& proto = graph_.initializer(it->second);
    const bool real = proto.data_type() == onnx::TensorProto::FLOAT ||
                      proto.data_type() == onnx::TensorProto::DOUBLE;
    if (!real) return std::nullopt;
    const std::optional<Tensor> data = data_.read(proto);
    return data ? std::optional(widen(*data)) : std::nullopt;
  }

  std::optional<Affine> affine(const onnx::NodeProto& node) const {
    if (node.input_size() != 5 || node.output_size() != 1) return std::nullopt;
    if (integer(node, "training_mode", 0) != 0 || integer(node, "spatial", 1) == 0)
      return std::nullopt;
    std::vector<std::vector<double>> parts;
    for (int i = 1; i < 5; ++i) {
      auto part = constant(node.input(i));
      if (!part || part->dims.size() != 1) return std::nullopt;
      parts.push_back(std::move(part->values));
      if (parts.back().size() != parts.front().size()) return std::nullopt;
    }
    const double epsilon =
        real(node, "epsilon", static_cast<float>(default_real("BatchNormalization", "epsilon")));
    Affine a;
    for (size_t c = 0; c < parts[0].size(); ++c) {
      const double factor = parts[0][c] / std::sqrt(parts[3][c] + epsilon);
      if (!std::isfinite(factor)) return std::nullopt;
      a.factor.push_back(factor);
      a.offset.push_back(parts[1][c] - parts[2][c] * factor);
    }
    return a;
  }

  /// Input i of the node; "" when it is absent.
  static std::string input(const onnx::NodeProto& node, int i) {
    return i < node.input_size() ? node.input(i) : "";
  }

  bool fold(const onnx::NodeProto& normalization) {
    const auto a = affine(normalization);
    if (!a) return false;
    const auto maker = makers_.find(normalization.input(0));
    if (maker == makers_.end() || readers(normalization.input(0)) != 1) return false;
    onnx::NodeProto& node = *graph_.mutable_node(maker->second);
    const bool done = node.output_size() != 1 ? false
                      : is(node, "Conv")      ? fold_conv(node, *a)
                      : is(node, "Gemm")      ? fold_gemm(node, *a)
                      : is(node, "MatMul")    ? fold_matmul(node, *a)
                                              : false;
    if (!done) return false;
    for (const auto& name : normalization.input()) forget(name);
    node.set_output(0, normalization.output(0));
    makers_[normalization.output(0)] = maker->second;
    return true;
  }

  bool fold_conv(onnx::NodeProto& node, const Affine& a) {
    auto weight = constant(input(node, 1));
    const auto bias = bias_of(input(node, 2), 1, a);
    if (!weight || !bias || weight->dims.empty() || !fits(weight->dims[0], a)) return false;
    scale(*weight, 0, a);
    replace(node, 1, *weight);
    replace(node, 2, {*bias, {static_cast<int64_t>(a.channels())}, weight->dtype});
    return true;
  }

  bool fold_gemm(onnx::NodeProto& node, const Affine& a) {
    const size_t axis = integer(node, "transB", 0) != 0 ? 0 : 1;
    auto weight = constant(input(node, 1));
    const auto bias = bias_of(input(node, 2), real(node, "beta", 1), a);
    if (!weight || !bias || weight->dims.size() != 2 || !fits(weight->dims[axis], a)) return false;
    scale(*weight, axis, a);
    replace(node, 1, *weight);
    replace(node, 2, {*bias, {static_cast<int64_t>(a.channels())}, weight->dtype});
    erase_attribute(node, "beta");
    return true;
  }

  /// Folds into a product of matrices: the channels are the columns, and Gemm can express the
  /// offset.
  bool fold_matmul(onnx::NodeProto& node, const Affine& a) {
    auto weight = constant(input(node, 1));
    if (!weight || weight->dims.size() != 2 || !fits(weight->dims[1], a)) return false;
    const auto rank = ranks_.find(input(node, 0));
    if (rank == ranks_.end() || rank->second != 2) return false;
    scale(*weight, 1, a);
    replace(node, 1, *weight);
    replace(node, 2, {a.offset, {static_cast<int64_t>(a.channels())}, weight->dtype});
    node.set_op_type("Gemm");
    return true;
  }

  static bool fits(int64_t extent, const Affine& a) {
    return extent == static_cast<int64_t>(a.channels());
  }

  /// (beta · bias) · factor + offset, if the bias is absent or a constant with one element per
  /// channel.
  std::optional<std::vector<double>> bias_of(const std::string& name, double beta,
                                             const Affine& a) const {
    if (name.empty()) return a.offset;
    const auto bias = constant(name);
    if (!bias) return std::nullopt;
    const size_t size = bias->values.size();
    const bool row = size == a.channels() && !bias->dims.empty() && fits(bias->dims.back(), a);
    if (!row && size != 1) return std::nullopt;
    std::vector<double> result;
    for (size_t c = 0; c < a.channels(); ++c) {
      result.push_back(beta * bias->values[row ? c : 0] * a.factor[c] + a.offset[c]);
    }
    return result;
  }

  static void scale(Array& weight, size_t axis, const Affine& a) {
    size_t inner = 1;
    for (size_t i = axis + 1; i < weight.dims.size(); ++i)
      inner *= static_cast<size_t>(weight.dims[i]);
    for (size_t i = 0; i < weight.values.size(); ++i)
      weight.values[i] *= a.factor[i / inner % a.channels()];
  }

  /// Replaces input i by a new initializer, named after the node's output.
  void replace(onnx::NodeProto& node, int i, const Array& array) {
    onnx::TensorProto& proto = *graph_.add_initializer();
    std::string name = node.output(0) + (i == 1 ? "/weight" : "/bias");
    while (readers_.count(name) != 0 || makers_.count(name) != 0 || inputs_.count(name) != 0 ||
           initializers_.count(name) != 0)
      name += "_";
    proto.set_name(name);
    data_.hold(&proto, narrow(array));
    initializers_.emplace(name, graph_.initializer_size() - 1);
    if (i < node.input_size()) {
      forget(node.input(i));
      node.set_input(i, name);
    } else {
      node.add_input(name);
    }
    ++readers_[name];
  }

  /// Infers ranks with ONNX's inference.
  void infer_ranks() {
    onnx::ModelProto copy = model_;
    for (auto& tensor : *copy.mutable_graph()->mutable_initializer()) {  // may be extents
      if (tensor.data_location() != onnx::TensorProto::EXTERNAL) continue;
      if (data_.bytes_of(tensor) >= kDetachedBytes) continue;
      const std::optional<Tensor> data = data_.read(tensor);
      if (!data || data->nbytes() != data_.bytes_of(tensor)) continue;
      tensor.clear_external_data();
      tensor.clear_data_location();
      tensor.set_raw_data(data->data(), data->nbytes());
    }
    try {
      onnx::shape_inference::InferShapes(copy);
    } catch (const std::exception&) {
      return;  // do not fold what ONNX's inference cannot handle
    }
    auto note = [&](const auto& values) {
      for (const auto& v : values) {
        if (v.type().tensor_type().has_shape())
          ranks_[v.name()] = v.type().tensor_type().shape().dim_size();
      }
    };
    note(copy.graph().input());
    note(copy.graph().value_info());
    note(copy.graph().output());
  }

  /// Removes the folded nodes, and the initializers and value infos that nothing uses any more.
  void sweep(const std::unordered_set<int>& removals) {
    google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
    std::unordered_set<std::string> names;
    for (int i = 0; i < graph_.node_size(); ++i) {
      if (removals.count(i) != 0) continue;
      for (const auto& name : graph_.node(i).output()) names.insert(name);
      nodes.Add()->Swap(graph_.mutable_node(i));
    }
    graph_.mutable_node()->Swap(&nodes);
    auto keep = [](auto* list, const auto& wanted) {
      for (int i = list->size() - 1; i >= 0; --i) {
        if (!wanted(list->Get(i).name())) list->DeleteSubrange(i, 1);
      }
    };
    // Keep initializers that had no reader before.
    keep(graph_.mutable_initializer(), [&](const std::string& name) {
      const auto it = readers_.find(name);
      return it == readers_.end() || it->second > 0 || inputs_.count(name) != 0;
    });
    keep(graph_.mutable_value_info(), [&](const std::string& name) {
      return names.count(name) != 0 || makers_.count(name) == 0;
    });
  }

  onnx::ModelProto& model_;
  onnx::GraphProto& graph_;
  DetachedModel& data_;
  int64_t opset_;
  std::unordered_map<std::string, int> readers_;  // in all graphs, graph outputs included
  std::unordered_set<std::string> inputs_;        // inputs of the model
  std::unordered_map<std::string, int> initializers_, makers_;
  std::unordered_map<std::string, int> ranks_;  // of values, when there are matrix products
};

}  // namespace

void rewrite_for_inference(DetachedModel& model) {
  onnx::ModelProto proto = parse_known(model.skeleton());
  Rewriter(proto, model).run();
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) throw ModelError("The model cannot be written.");
  model.set_skeleton(std::move(bytes));
}

std::string model_for_inference(std::span<const std::byte> bytes,
                                const std::filesystem::path& folder) try {
  DetachedModel model(bytes, {}, folder);  // checks the message, too
  rewrite_for_inference(model);
  return model.whole();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void write_for_inference(const std::filesystem::path& model, const std::filesystem::path& path,
                         const ExportOptions& options) try {
  const std::string bytes = read_file(model, Limits{}.max_bytes);
  const std::filesystem::path folder = model.has_parent_path() ? model.parent_path() : ".";
  DetachedModel detached(std::as_bytes(std::span(bytes)), {}, folder);
  rewrite_for_inference(detached);
  detached.write(path, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace steep
