// Imports nodes as operators of the newest opset, by the rules of model/upgrade.

#include <onnx/defs/schema.h>

#include <algorithm>
#include <charconv>

#include "model/import/handlers.h"
#include "model/read/attributes.h"
#include "model/read/node_names.h"
#include "model/read/quote.h"
#include "ops/metadata_keys.h"
#include "ops/onnx_proto.h"
#include "steep/error.h"

namespace steep {
namespace {

const std::string* metadata(const onnx::NodeProto& node, std::string_view key) {
  const auto& entries = node.metadata_props();
  const auto it = std::find_if(entries.begin(), entries.end(),
                               [&](const auto& entry) { return entry.key() == key; });
  return it == entries.end() ? nullptr : &it->value();
}

bool has_metadata(const onnx::NodeProto& node, const char* key) {
  return metadata(node, key) != nullptr;
}

/// The attribute with its full digits from the metadata, since ONNX stores it as float32. The
/// metadata is ignored when it does not round to the attribute's value.
Attr with_digits(Attr attr, const onnx::NodeProto& node, const std::string& name) {
  const auto* rounded = std::get_if<double>(&attr);
  const std::string* text =
      rounded == nullptr ? nullptr : metadata(node, std::string(kDigitsKey) + name);
  if (text == nullptr) return attr;
  double exact = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), exact);
  const bool whole = error == std::errc() && end == text->data() + text->size();
  return whole && static_cast<float>(exact) == *rounded ? Attr(exact) : attr;
}

void read_attributes(const Importer& importer, const FileNode& node, Call* call) {
  for (const auto& proto : node.proto.attribute()) {
    const onnx::AttributeProto* attribute = node.frame.resolve(proto);
    if (attribute == nullptr) continue;
    if (attribute->type() == onnx::AttributeProto::TYPE_PROTO) {
      call->type = type_from_proto(attribute->tp());
      continue;
    }
    Attr value = attr_from_onnx(*attribute, call->name, *importer.model().tensors);
    call->attrs.set(proto.name(), with_digits(std::move(value), node.proto, proto.name()));
  }
}

/// Call::wanted for each output. An optional output that nothing reads is not wanted, because it
/// would cost kernel time: MaxPool's indices.
std::vector<bool> wanted_outputs(Importer& importer, const FileNode& node) {
  const onnx::NodeProto& proto = node.proto;
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(
      proto.op_type(), static_cast<int>(node.frame.opset), proto.domain());
  const bool by_outputs = proto.op_type() == "BatchNormalization";  // the old training mode
  std::vector<bool> wanted;
  for (int i = 0; i < proto.output_size(); ++i) {
    const auto at = static_cast<size_t>(i);
    const bool optional = schema != nullptr && !by_outputs && at < schema->outputs().size() &&
                          schema->outputs()[at].GetOption() == onnx::OpSchema::Optional;
    const std::string& name = proto.output(i);
    wanted.push_back(!name.empty() && (!optional || importer.names_read().contains(name)));
  }
  while (!wanted.empty() && !wanted.back()) wanted.pop_back();
  return wanted;
}

}  // namespace

Bindings import_upgraded(Importer& importer, FileNode& node, UpgradeRule rule) {
  Call call{.writer = importer,
            .graph = importer.graph(),
            .op = canonical_name(node.proto),
            .name = node.name(),
            .inputs = std::move(node.inputs),
            .attrs = {},
            .wanted = wanted_outputs(importer, node),
            .training = importer.training(),
            .from_pytorch = importer.model().proto.producer_name() == "pytorch",
            .stops_gradient = has_metadata(node.proto, kStopGradientKey),
            .sample_variance = has_metadata(node.proto, kSampleVarianceKey)};
  read_attributes(importer, node, &call);
  if (call.wanted.empty()) return {};
  const Graph::Scope origin(importer.graph(), Phase::forward, call.name);
  return rule(call);
}

Bindings import_as_is(Importer& importer, FileNode& node) {
  const onnx::NodeProto& proto = node.proto;
  if (!proto.domain().empty() && !says_gradient(proto) && !is_steep(proto)) {
    throw ModelError(
        {.what = "The operator is not known.", .received = "domain " + quote(proto.domain())});
  }
  return import_upgraded(importer, node, [](const Call& call) { return call.as_is(); });
}

}  // namespace steep
