// with_weights(): the file is copied field by field; only the data of the named initializers
// changes.

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <climits>
#include <deque>
#include <new>
#include <set>
#include <vector>

#include "model/import.h"
#include "model/quote.h"
#include "model/scan.h"
#include "model/tensor_proto.h"
#include "model/wire.h"
#include "runtime/memory.h"
#include "runtime/packing.h"
#include "steep/error.h"

namespace steep {
namespace {

// Field numbers of onnx.proto.
constexpr uint32_t kModelGraph = 7;
constexpr uint32_t kGraphNode = 1;
constexpr uint32_t kGraphInitializer = 5;
constexpr uint32_t kNodeOpType = 4;
constexpr uint32_t kTensorName = 8;
constexpr uint32_t kTensorRawData = 9;
constexpr uint32_t kTensorDataLocation = 14;
const std::set<uint32_t> kTensorData = {4, 5, 6, 7, 9, 10, 11, 13, kTensorDataLocation};

/// A message in pieces: runs of bytes that belong to the old file, to tensors, or to `made`.
struct Pieces {
  std::vector<std::span<const std::byte>> runs;
  std::deque<std::string> made;  // never moves what it holds
  size_t size = 0;

  void add(std::span<const std::byte> run) {
    runs.push_back(run);
    size += run.size();
  }
  void add(std::string bytes) {
    made.push_back(std::move(bytes));
    add(std::as_bytes(std::span(made.back())));
  }
};

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data()), tensor.nbytes()};
}

struct TensorLook {
  std::string name;
  bool external = false;
};

TensorLook look_at(std::span<const std::byte> tensor) {
  TensorLook look;
  WireReader reader(tensor);
  for (WireField f; reader.next(f);) {
    if (f.number == kTensorName && f.type == WireType::bytes) {
      look.name.assign(reinterpret_cast<const char*>(f.payload.data()), f.payload.size());
    }
    if (f.number == kTensorDataLocation) look.external = f.value == onnx::TensorProto::EXTERNAL;
  }
  return look;
}

onnx::TensorProto parse_tensor(std::span<const std::byte> bytes, const std::string& name) {
  onnx::TensorProto proto;
  if (bytes.size() > INT_MAX ||
      !proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    throw ModelError({.what = "An initializer cannot be parsed.", .node = quote(name)});
  }
  return proto;
}

/// The initializer with other data; all its other fields stay.
void add_replaced(Pieces& out, std::span<const std::byte> old, const Tensor& data) {
  std::vector<std::span<const std::byte>> kept;
  size_t size = 0;
  WireReader reader(old);
  for (WireField f; reader.next(f);) {
    if (kTensorData.count(f.number) != 0) continue;
    kept.push_back(f.whole);
    size += f.whole.size();
  }
  std::string raw_header;
  append_bytes_header(raw_header, kTensorRawData, data.nbytes());
  std::string header;
  append_bytes_header(header, kGraphInitializer, size + raw_header.size() + data.nbytes());
  out.add(std::move(header));
  for (const auto& run : kept) out.add(run);
  out.add(std::move(raw_header));
  out.add(bytes_of(data));
}

void check_same_type(const std::string& name, const onnx::TensorProto& old, const Tensor& data) {
  const Dims dims(old.dims().begin(), old.dims().end());
  if (old.data_type() == static_cast<int32_t>(data.dtype()) && dims == data.dims()) return;
  const auto dtype = static_cast<DType>(old.data_type());
  throw ModelError({.what = "A weight does not fit its initializer.",
                    .node = quote(name),
                    .expected = fmt::format("{}{}", name_of(dtype), to_string(dims)),
                    .received = fmt::format("{}{}", name_of(data.dtype()), to_string(data.dims())),
                    .remedy = "Give the weights of this very model."});
}

[[noreturn]] void throw_missing(const std::set<std::string>& missing) {
  std::string list;
  for (const auto& name : missing) list += (list.empty() ? "" : ", ") + quote(name);
  throw ModelError({.what = "Weights are given that the model does not have.",
                    .node = quote(*missing.begin()),
                    .expected = "names of initializers of the model's graph",
                    .received = list.size() > 2000 ? list.substr(0, 2000) + " …" : list,
                    .remedy = "Check the names; give the weights of this very model."});
}

/// Cheaper than parsing every node.
bool mentions_constant(std::span<const std::byte> node) {
  WireReader reader(node);
  for (WireField f; reader.next(f);) {
    if (f.number != kNodeOpType) continue;
    return std::string_view(reinterpret_cast<const char*>(f.payload.data()), f.payload.size()) ==
           "Constant";
  }
  return false;
}

bool is_constant(const onnx::NodeProto& node) {
  return node.op_type() == "Constant" && node.domain().empty() && node.output_size() == 1;
}

/// The Constant node with another value of the same type.
std::string with_value(onnx::NodeProto node, const Tensor& data) {
  onnx::TensorProto* value = nullptr;
  for (auto& attribute : *node.mutable_attribute()) {
    if (attribute.name() == "value") value = attribute.mutable_t();
  }
  if (value != nullptr) {
    check_same_type(node.output(0), *value, data);
  } else {  // value_float or value_floats
    node.clear_attribute();
    auto* attribute = node.add_attribute();
    attribute->set_name("value");
    attribute->set_type(onnx::AttributeProto::TENSOR);
    value = attribute->mutable_t();
  }
  value->Clear();
  value->set_data_type(static_cast<int32_t>(data.dtype()));
  for (const int64_t extent : data.dims()) value->add_dims(extent);
  value->set_raw_data(data.data(), data.nbytes());
  std::string bytes;
  if (!node.SerializeToString(&bytes)) throw ModelError("A Constant node is too large.");
  return bytes;
}

void check_size(size_t size) {
  if (size <= INT_MAX) return;
  throw ModelError({.what = "The model with its weights is larger than one ONNX file can be.",
                    .expected = fmt::format("at most {} bytes", INT_MAX),
                    .received = fmt::format("{} bytes", size),
                    .remedy =
                        "Write fewer weights into the file and keep the others external, or save a "
                        "checkpoint instead."});
}

std::string assemble(std::span<const std::byte> model, const std::map<std::string, Tensor>& weights,
                     const std::filesystem::path& folder) {
  scan_model(model, {});
  Pieces graph;
  std::vector<Tensor> read;  // keeps what comes from outside the file
  ExternalData external(folder);
  std::set<std::string> missing;
  for (const auto& [name, tensor] : weights) missing.insert(name);

  size_t graphs = 0;
  WireReader outer(model);
  for (WireField f; outer.next(f);) {
    if (f.number != kModelGraph) continue;
    if (++graphs > 1) {  // protobuf would merge them; no exporter writes this
      throw ModelError({.what = "The model has two graphs.", .remedy = "Export the model again."});
    }
    WireReader reader(f.payload);
    for (WireField g; reader.next(g);) {
      onnx::NodeProto node;
      if (g.number == kGraphNode && mentions_constant(g.payload) &&
          node.ParseFromArray(g.payload.data(), static_cast<int>(g.payload.size())) &&
          is_constant(node) && weights.count(node.output(0)) != 0) {
        const std::string made = with_value(node, pack(weights.at(node.output(0))));
        std::string field;
        append_bytes_header(field, kGraphNode, made.size());
        graph.add(field + made);
        missing.erase(node.output(0));
        continue;
      }
      if (g.number != kGraphInitializer || g.type != WireType::bytes) {
        graph.add(g.whole);
        continue;
      }
      const TensorLook look = look_at(g.payload);
      if (auto w = weights.find(look.name); w != weights.end()) {
        check_same_type(look.name, parse_tensor(g.payload, look.name), w->second);
        read.push_back(pack(w->second));
        add_replaced(graph, g.payload, read.back());
        missing.erase(look.name);
      } else if (look.external && !folder.empty()) {
        read.push_back(pack(decode(parse_tensor(g.payload, look.name), look.name, external)));
        add_replaced(graph, g.payload, read.back());
      } else {
        graph.add(g.whole);
      }
    }
  }
  if (!missing.empty()) throw_missing(missing);
  check_size(graph.size);
  std::string out;
  WireReader again(model);
  for (WireField f; again.next(f);) {
    if (f.number != kModelGraph) {
      out.append(reinterpret_cast<const char*>(f.whole.data()), f.whole.size());
      continue;
    }
    out.reserve(out.size() + graph.size + 1024);
    append_bytes_header(out, kModelGraph, graph.size);
    for (const auto& run : graph.runs)
      out.append(reinterpret_cast<const char*>(run.data()), run.size());
  }
  check_size(out.size());
  return out;
}

}  // namespace

std::string with_weights(std::span<const std::byte> model_bytes,
                         const std::map<std::string, Tensor>& weights,
                         const std::filesystem::path& folder) {
  try {
    return assemble(model_bytes, weights, folder);
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  }
}

}  // namespace steep
