// model_for_inference(): rewrites the file's own messages, since all but a few nodes are to stay as
// they are.

#include <fmt/format.h>
#include <onnx/onnx_pb.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <new>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "model/check.h"
#include "model/import.h"
#include "model/scan.h"
#include "model/tensor_proto.h"
#include "ops/op_def.h"
#include "runtime/memory.h"
#include "steep/error.h"
#include "steep/export.h"

namespace steep {
namespace {

bool is(const onnx::NodeProto& node, std::string_view op) {
  return node.op_type() == op && (node.domain().empty() || node.domain() == "ai.onnx");
}

const onnx::AttributeProto* find_attribute(const onnx::NodeProto& node, std::string_view name) {
  for (const auto& a : node.attribute()) {
    if (a.name() == name) return &a;
  }
  return nullptr;
}

int64_t integer(const onnx::NodeProto& node, std::string_view name, int64_t otherwise) {
  const auto* a = find_attribute(node, name);
  return a == nullptr ? otherwise : a->i();
}

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

/// Numbers in double precision, and what they were stored in.
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
void write(const std::vector<double>& values, onnx::TensorProto& proto) {
  std::vector<T> narrow(values.begin(), values.end());
  proto.set_raw_data(narrow.data(), narrow.size() * sizeof(T));
}

/// y = x · factor + offset, a channel each.
struct Affine {
  std::vector<double> factor, offset;
  size_t channels() const { return factor.size(); }
};

class Rewriter {
 public:
  explicit Rewriter(onnx::ModelProto& model)
      : model_(model), graph_(*model.mutable_graph()), opset_(default_opset(model.opset_import())) {
    count_readers(graph_);
    for (const auto& output : graph_.output()) ++readers_[output.name()];
    for (const auto& input : graph_.input()) fed_.insert(input.name());
    for (int i = 0; i < graph_.initializer_size(); ++i) {
      initializers_.emplace(graph_.initializer(i).name(), i);
    }
    for (int i = 0; i < graph_.node_size(); ++i) {
      for (const auto& name : graph_.node(i).output()) makers_.emplace(name, i);
    }
  }

  void run() {
    bool multiplies = false;
    for (auto& node : *graph_.mutable_node()) {
      if (is(node, "BatchNormalization")) freeze(node);
      if (is(node, "Dropout") && opset_ >= 12 && node.input_size() > 2) {
        forget(node.input(2));
        node.mutable_input()->RemoveLast();
      }
      multiplies = multiplies || is(node, "MatMul");
    }
    if (multiplies) infer_ranks();
    std::unordered_set<int> gone;
    for (int i = 0; i < graph_.node_size(); ++i) {
      if (is(graph_.node(i), "BatchNormalization") && fold(graph_.node(i))) gone.insert(i);
    }
    sweep(gone);
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

  /// Training mode off: opset 14 and newer have an attribute for it, older ones count outputs.
  void freeze(onnx::NodeProto& node) {
    for (int i = 1; i < node.output_size(); ++i) {
      if (!node.output(i).empty() && readers(node.output(i)) > 0) return;
    }
    if (opset_ >= 14) erase_attribute(node, "training_mode");
    if (node.output_size() > 1) node.mutable_output()->DeleteSubrange(1, node.output_size() - 1);
  }

  /// A constant of float32 or float64 that no input of the model can replace.
  std::optional<Array> constant(const std::string& name) const {
    const auto it = initializers_.find(name);
    if (it == initializers_.end() || fed_.count(name) != 0) return std::nullopt;
    const onnx::TensorProto& proto = graph_.initializer(it->second);
    const bool real = proto.data_type() == onnx::TensorProto::FLOAT ||
                      proto.data_type() == onnx::TensorProto::DOUBLE;
    if (!real || proto.data_location() == onnx::TensorProto::EXTERNAL) return std::nullopt;
    ExternalData nowhere{std::filesystem::path()};
    return widen(decode(proto, name, nowhere));
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

  /// Of matrices: then the channels are the columns, and Gemm can say it.
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

  /// (beta · bias) · factor + offset, if the bias is a constant of one number a channel, or absent.
  std::optional<std::vector<double>> bias_of(const std::string& name, double beta,
                                             const Affine& a) const {
    if (name.empty()) return a.offset;
    const auto bias = constant(name);
    if (!bias) return std::nullopt;
    const size_t size = bias->values.size();
    const bool row = size == a.channels() && !bias->dims.empty() && fits(bias->dims.back(), a);
    if (!row && size != 1) return std::nullopt;
    std::vector<double> folded;
    for (size_t c = 0; c < a.channels(); ++c) {
      folded.push_back(beta * bias->values[row ? c : 0] * a.factor[c] + a.offset[c]);
    }
    return folded;
  }

  static void scale(Array& weight, size_t axis, const Affine& a) {
    size_t inner = 1;
    for (size_t i = axis + 1; i < weight.dims.size(); ++i)
      inner *= static_cast<size_t>(weight.dims[i]);
    for (size_t i = 0; i < weight.values.size(); ++i)
      weight.values[i] *= a.factor[i / inner % a.channels()];
  }

  /// A new initializer in the place of input i, under a name made of the node's result.
  void replace(onnx::NodeProto& node, int i, const Array& array) {
    onnx::TensorProto& proto = *graph_.add_initializer();
    std::string name = node.output(0) + (i == 1 ? "/weight" : "/bias");
    while (readers_.count(name) != 0 || makers_.count(name) != 0 || fed_.count(name) != 0 ||
           initializers_.count(name) != 0)
      name += "_";
    proto.set_name(name);
    proto.set_data_type(static_cast<int32_t>(array.dtype));
    for (const int64_t extent : array.dims) proto.add_dims(extent);
    if (array.dtype == DType::f32) {
      write<float>(array.values, proto);
    } else {
      write<double>(array.values, proto);
    }
    initializers_.emplace(name, graph_.initializer_size() - 1);
    if (i < node.input_size()) {
      forget(node.input(i));
      node.set_input(i, name);
    } else {
      node.add_input(name);
    }
    ++readers_[name];
  }

  /// By ONNX's own inference.
  void infer_ranks() {
    onnx::ModelProto copy = model_;
    try {
      onnx::shape_inference::InferShapes(copy);
    } catch (const std::exception&) {
      return;  // what it does not understand is not folded
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

  /// Drops the folded nodes, and the initializers and notes that nobody needs any more.
  void sweep(const std::unordered_set<int>& gone) {
    google::protobuf::RepeatedPtrField<onnx::NodeProto> nodes;
    std::unordered_set<std::string> made;
    for (int i = 0; i < graph_.node_size(); ++i) {
      if (gone.count(i) != 0) continue;
      for (const auto& name : graph_.node(i).output()) made.insert(name);
      nodes.Add()->Swap(graph_.mutable_node(i));
    }
    graph_.mutable_node()->Swap(&nodes);
    auto keep = [](auto* list, const auto& wanted) {
      for (int i = list->size() - 1; i >= 0; --i) {
        if (!wanted(list->Get(i).name())) list->DeleteSubrange(i, 1);
      }
    };
    // An initializer that nobody ever read is somebody else's affair.
    keep(graph_.mutable_initializer(), [&](const std::string& name) {
      const auto it = readers_.find(name);
      return it == readers_.end() || it->second > 0 || fed_.count(name) != 0;
    });
    keep(graph_.mutable_value_info(), [&](const std::string& name) {
      return made.count(name) != 0 || makers_.count(name) == 0;
    });
  }

  onnx::ModelProto& model_;
  onnx::GraphProto& graph_;
  int64_t opset_;
  std::unordered_map<std::string, int> readers_;  // of all graphs; an output of a graph counts
  std::unordered_set<std::string> fed_;           // inputs of the model
  std::unordered_map<std::string, int> initializers_, makers_;
  std::unordered_map<std::string, int> ranks_;  // of values, where there are products of matrices
};

}  // namespace

std::string model_for_inference(std::span<const std::byte> bytes,
                                const std::filesystem::path& folder) {
  try {
    const std::string whole = with_weights(bytes, {}, folder);  // checks the message, too
    onnx::ModelProto model;
    if (!model.ParseFromString(whole)) {
      throw ModelError({.what = "The model cannot be parsed.",
                        .expected = "an ONNX model",
                        .remedy = "Export the model again."});
    }
    Rewriter(model).run();
    std::string out;
    if (model.ByteSizeLong() > INT_MAX || !model.SerializeToString(&out)) {
      throw ModelError({.what = "The model is larger than one ONNX file can be.",
                        .expected = fmt::format("at most {} bytes", INT_MAX)});
    }
    return out;
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  }
}

}  // namespace steep
