#include "model/read/attributes.h"

#include "model/read/quote.h"
#include "steep/error.h"

namespace steep {

Attr attr_from_onnx(const onnx::AttributeProto& proto, const std::string& node,
                    TensorTable& tensors) {
  switch (proto.type()) {
    case onnx::AttributeProto::INT: return proto.i();
    case onnx::AttributeProto::FLOAT: return static_cast<double>(proto.f());
    case onnx::AttributeProto::STRING: return proto.s();
    case onnx::AttributeProto::INTS: return Ints(proto.ints().begin(), proto.ints().end());
    case onnx::AttributeProto::FLOATS: return Floats(proto.floats().begin(), proto.floats().end());
    case onnx::AttributeProto::STRINGS:
      return Strings(proto.strings().begin(), proto.strings().end());
    case onnx::AttributeProto::TENSOR: return tensors.get(proto.t(), node);
    default: break;
  }
  throw ModelError({.what = "An attribute has a kind that Steep cannot train with.",
                    .node = quote(node),
                    .expected = "a number, a string, a list of these, or a tensor",
                    .received = quote(proto.name()) + " of kind " +
                                onnx::AttributeProto_AttributeType_Name(proto.type()),
                    .remedy = "Export the model without this operator."});
}

}  // namespace steep
