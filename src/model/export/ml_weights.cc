#include "model/export/ml_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/import/ml.h"
#include "model/read/copier.h"
#include "model/read/model_file.h"
#include "model/read/quote.h"
#include "model/read/wire.h"
#include "steep/error.h"

namespace steep {
namespace {

/// Whether the model imports the domain. Cheaper than parsing the model.
bool imports_ml(std::span<const std::byte> model) {
  constexpr uint32_t kOpsetImport = 8;  // of ModelProto
  constexpr uint32_t kDomain = 1;       // of OperatorSetIdProto
  WireReader reader(model);
  for (WireField f; reader.next(f);) {
    if (f.number != kOpsetImport || f.type != WireType::bytes) continue;
    WireReader import(f.payload);
    for (WireField g; import.next(g);) {
      if (g.number == kDomain && g.type == WireType::bytes && text_of(g.payload) == kMlDomain)
        return true;
    }
  }
  return false;
}

void write(const MlWeight& weight, const Tensor& data, onnx::NodeProto* node) {
  if (data.dtype() != DType::f32 || data.dims() != weight.dims) {
    throw ModelError(
        {.what = "A weight does not match its attribute.",
         .node = quote(weight.name),
         .expected = fmt::format("{}{}", name_of(DType::f32), to_string(weight.dims)),
         .received = fmt::format("{}{}", name_of(data.dtype()), to_string(data.dims())),
         .remedy = "Give the weights of this model."});
  }
  for (auto& attribute : *node->mutable_attribute()) {
    if (attribute.name() != weight.attribute) continue;
    attribute.clear_floats();
    const std::span<const float> values(data.data<float>(), static_cast<size_t>(data.size()));
    if (weight.mirrored) {
      for (const float value : values) attribute.add_floats(-value);
    }
    for (const float value : values) attribute.add_floats(value);
  }
}

}  // namespace

std::optional<std::string> with_ml_weights(std::span<const std::byte> model,
                                           std::map<std::string, Tensor>* weights) {
  if (weights->empty() || !imports_ml(model)) return std::nullopt;
  onnx::ModelProto proto = parse_known(text_of(model));
  bool changed = false;
  for (const MlWeight& weight : ml_weights(proto.graph())) {
    const auto data = weights->find(weight.name);
    if (data == weights->end()) continue;
    write(weight, data->second, proto.mutable_graph()->mutable_node(weight.node));
    weights->erase(data);
    changed = true;
  }
  if (!changed) return std::nullopt;
  std::string bytes;
  if (!proto.SerializeToString(&bytes)) throw ModelError("The model is too large.");
  return bytes;
}

}  // namespace steep
