#include "model/attributes.h"

#include "model/quote.h"
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

onnx::AttributeProto attr_to_onnx(const std::string& name, const Attr& attr) {
  onnx::AttributeProto proto;
  proto.set_name(name);
  if (const auto* i = std::get_if<int64_t>(&attr)) {
    proto.set_type(onnx::AttributeProto::INT);
    proto.set_i(*i);
  } else if (const auto* f = std::get_if<double>(&attr)) {
    proto.set_type(onnx::AttributeProto::FLOAT);
    proto.set_f(static_cast<float>(*f));
  } else if (const auto* s = std::get_if<std::string>(&attr)) {
    proto.set_type(onnx::AttributeProto::STRING);
    proto.set_s(*s);
  } else if (const auto* is = std::get_if<Ints>(&attr)) {
    proto.set_type(onnx::AttributeProto::INTS);
    proto.mutable_ints()->Add(is->begin(), is->end());
  } else if (const auto* fs = std::get_if<Floats>(&attr)) {
    proto.set_type(onnx::AttributeProto::FLOATS);
    for (double f : *fs) proto.add_floats(static_cast<float>(f));
  } else if (const auto* ss = std::get_if<Strings>(&attr)) {
    proto.set_type(onnx::AttributeProto::STRINGS);
    for (const auto& s : *ss) proto.add_strings(s);
  } else if (const auto* t = std::get_if<Tensor>(&attr)) {
    proto.set_type(onnx::AttributeProto::TENSOR);
    proto.mutable_t()->set_data_type(static_cast<int32_t>(t->dtype()));
    for (int64_t d : t->dims()) proto.mutable_t()->add_dims(d);
    proto.mutable_t()->set_raw_data(t->data(), t->nbytes());
  }
  return proto;
}

}  // namespace steep
