#include "model/read/model_metadata.h"

#include <onnx/onnx_pb.h>

#include <span>

#include "model/read/model_file.h"
#include "model/read/wire.h"

namespace steep {
namespace {

std::string text_of(const WireField& field) {
  return {reinterpret_cast<const char*>(field.payload.data()), field.payload.size()};
}

}  // namespace

std::map<std::string, std::string> custom_metadata(const std::filesystem::path& model,
                                                   size_t max_bytes) {
  const std::string bytes = read_file(model, max_bytes);
  std::map<std::string, std::string> result;
  WireReader fields(std::as_bytes(std::span(bytes)));
  for (WireField field; fields.next(field);) {
    if (field.number != onnx::ModelProto::kMetadataPropsFieldNumber) continue;
    if (field.type != WireType::bytes) continue;
    std::string key, value;
    WireReader entry(field.payload);
    for (WireField part; entry.next(part);) {
      if (part.type != WireType::bytes) continue;
      if (part.number == onnx::StringStringEntryProto::kKeyFieldNumber) key = text_of(part);
      if (part.number == onnx::StringStringEntryProto::kValueFieldNumber) value = text_of(part);
    }
    result[key] = value;
  }
  return result;
}

}  // namespace steep
