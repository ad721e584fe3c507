// Finds the weights of a file that can have adapters, in the model's graph and in bodies.
#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "model/export/adapters.h"
#include "model/export/node_proto.h"
#include "model/export/scopes.h"
#include "model/read/model_file.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "ops/op_def.h"
#include "runtime/counted.h"

namespace steep {
namespace {

/// Whether the node is ONNX Runtime's product with packed weights. (If the file defines a function
/// of this name, the function is called, and an adapter is beside it all the same.)
bool multiplies_packed(const onnx::NodeProto& node) {
  return node.op_type() == "MatMulNBits" && node.domain() == "com.microsoft";
}

/// How a value that is made of a weight differs from it.
struct Form {
  int value;
  DType dtype = DType::undefined;
  bool transposed = false;
  bool converted = false;  // it has been cast or dequantised
};

class Finder {
 public:
  explicit Finder(const onnx::GraphProto& graph, const BodyNames& names)
      : scopes_(graph, names), names_(all_names(graph)) {}

  std::vector<Adapter> run() const {
    std::vector<Adapter> result;
    for (const int weight : scopes_.tensors()) {
      if (!scopes_.value(weight).name.empty()) result.push_back(look_at(weight));
    }
    return result;
  }

 private:
  Adapter look_at(int weight) const {
    const onnx::TensorProto& tensor = *scopes_.value(weight).tensor;
    Adapter adapter{.weight = scopes_.value(weight).name};
    if (tensor.dims_size() != 2 && !is_packed(weight)) {
      adapter.why_not =
          fmt::format("is no matrix, but has {}", counted(tensor.dims_size(), "axis", "axes"));
      return adapter;
    }
    if (tensor.dims_size() == 2) {
      adapter.rows = tensor.dims(0);
      adapter.columns = tensor.dims(1);
    }
    std::vector<Form> open{{.value = weight, .dtype = static_cast<DType>(tensor.data_type())}};
    std::string other;             // a use that is not a right operand
    std::unordered_set<int> seen;  // a damaged file may have a cycle
    for (size_t at = 0; at < open.size(); ++at) {
      const Form form = open[at];
      if (form.value < 0 || !seen.insert(form.value).second) continue;
      const Scopes::Value& value = scopes_.value(form.value);
      if (!value.why_output.empty()) other = value.why_output;
      for (const Scopes::Reader& reader : value.readers) {
        std::string why = follow(form, reader, weight, adapter, open);
        if (other.empty()) other = std::move(why);
      }
    }
    if (!adapter.why_not.empty()) return adapter;
    adapter.why_not = adapter.products.empty()
                          ? "is no right operand of a MatMul, Gemm or MatMulNBits of the model's "
                            "graph or of bodies in it"
                          : std::move(other);
    if (adapter.transposed) std::swap(adapter.rows, adapter.columns);
    for (const std::string& name : {adapter.a(), adapter.b()}) {
      if (adapter.why_not.empty() && names_.count(name) != 0)
        adapter.why_not = fmt::format("has an adapter in the file, '{}'", quote(name));
    }
    return adapter;
  }

  /// Looks at one reader of a form of the weight. Returns why it rules an adapter out, or "".
  std::string follow(const Form& form, const Scopes::Reader& reader, int weight, Adapter& adapter,
                     std::vector<Form>& open) const {
    const onnx::NodeProto& node = scopes_.node(reader.node);
    const int input = reader.input;
    const auto reads = [&] {
      return fmt::format("is read by '{}' ({})", quote(display_name(node)), quote(node.op_type()));
    };
    if (node.output_size() == 0) return reads();
    if (input == 1 && (is(node, "MatMul") || is(node, "Gemm"))) {
      take_product(form, reader.node, adapter);
      return "";
    }
    if (input == 1 && multiplies_packed(node) && form.value == weight) {
      take_packed(reader.node, *scopes_.value(weight).tensor, adapter);
      return "";
    }
    Form next = form;
    if (input != 0) return reads();
    next.value = scopes_.output(reader.node, 0);
    if (is(node, "Transpose")) {
      const auto* perm = find_attribute(node, "perm");
      if (perm == nullptr || perm->ints_size() == 0 || perm->ints(0) == 1)
        next.transposed = !next.transposed;
    } else if (is(node, "Cast")) {
      next.dtype = static_cast<DType>(integer(node, "to"));
      next.converted = true;
    } else if (is(node, "DequantizeLinear")) {
      next.dtype = dequantised(reader.node);
      next.converted = true;
    } else if (!is(node, "Identity")) {
      return reads();
    }
    open.push_back(next);
    return "";
  }

  DType dequantised(int node) const {
    const int64_t dtype = integer(scopes_.node(node), "output_dtype");
    return dtype != 0 ? static_cast<DType>(dtype) : dtype_of_input(node, 1);
  }

  /// Of a tensor of the file; undefined for other values.
  DType dtype_of_input(int node, int input) const {
    const int value = scopes_.input(node, input);
    const auto* tensor = value < 0 ? nullptr : scopes_.value(value).tensor;
    return tensor == nullptr ? DType::undefined : static_cast<DType>(tensor->data_type());
  }

  bool is_packed(int weight) const {
    const auto& readers = scopes_.value(weight).readers;
    return std::any_of(readers.begin(), readers.end(), [&](const Scopes::Reader& reader) {
      return reader.input == 1 && multiplies_packed(scopes_.node(reader.node));
    });
  }

  /// The weight holds packed numbers of a matrix whose extents are attributes of the product.
  void take_packed(int number, const onnx::TensorProto& tensor, Adapter& adapter) const {
    const onnx::NodeProto& node = scopes_.node(number);
    const int64_t k = integer(node, "K"), n = integer(node, "N"), bits = integer(node, "bits", 4),
                  block = integer(node, "block_size");
    // The importer says more about attributes that do not fit. Here they must not ask for memory.
    const bool fits = k > 0 && n > 0 && block > 0 && (bits == 2 || bits == 4 || bits == 8) &&
                      tensor.dims_size() == 3 && tensor.dims(0) == n &&
                      tensor.dims(1) == (k - 1) / block + 1 && block <= kFar &&
                      tensor.dims(2) == block * bits / 8;
    const DType dtype = dtype_of_input(number, 2);
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
    const onnx::NodeProto& node = scopes_.node(number);
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

  Scopes scopes_;
  std::unordered_set<std::string> names_;
};

}  // namespace

std::vector<Adapter> find_adapters(const DetachedModel& model) {
  const onnx::ModelProto proto = parse_known(model.skeleton());
  const BodyNames names(std::as_bytes(std::span(model.skeleton())));
  return Finder(proto.graph(), names).run();
}

namespace {

/// Whether the reader unpacks the value, an operand of quantised numbers; with `scale`, whether the
/// value is the scale of such an operand.
bool unpacks(const Scopes& scopes, const Scopes::Reader& reader, bool scale) {
  const onnx::NodeProto& node = scopes.node(reader.node);
  const int numbers = multiplies_packed(node) ? 1 : 0;
  return reader.input == numbers + (scale ? 1 : 0) &&
         (is(node, "DequantizeLinear") || multiplies_packed(node));
}

/// The names of the initializers of the model's graph for which `test` holds.
template <typename Test>
std::set<std::string> initializers_where(const DetachedModel& model, const Test& test) {
  const onnx::ModelProto proto = parse_known(model.skeleton());
  const BodyNames names(std::as_bytes(std::span(model.skeleton())));
  const Scopes scopes(proto.graph(), names);
  std::set<std::string> result;
  for (const int number : scopes.tensors()) {
    const Scopes::Value& value = scopes.value(number);
    if (value.initializer && test(scopes, value)) result.insert(value.name);
  }
  return result;
}

}  // namespace

std::set<std::string> quantised_weights(const DetachedModel& model) {
  return initializers_where(model, [](const Scopes& scopes, const Scopes::Value& value) {
    return std::any_of(value.readers.begin(), value.readers.end(),
                       [&](const auto& reader) { return unpacks(scopes, reader, false); });
  });
}

std::set<std::string> scales_of_weights(const DetachedModel& model) {
  return initializers_where(model, [](const Scopes& scopes, const Scopes::Value& value) {
    return std::any_of(value.readers.begin(), value.readers.end(),
                       [&](const auto& reader) { return unpacks(scopes, reader, true); });
  });
}

}  // namespace steep
