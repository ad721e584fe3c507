#include "ops/onnx_proto.h"

#include <memory>

#include "runtime/packing.h"

namespace steep {

void to_proto(const Shape& shape, onnx::TensorShapeProto* proto) {
  for (const Dim& d : shape) {
    auto* dim = proto->add_dim();
    if (d.known()) {
      dim->set_dim_value(d.value());
    } else if (!d.symbol().empty()) {
      dim->set_dim_param(d.symbol());
    }
  }
}

// Submessages are built completely before a message takes them over: protobuf sets the case of a
// oneof before it allocates, and when that throws, it destroys memory that it never got.
onnx::TypeProto to_proto(const Type& type) {
  auto tensor = std::make_unique<onnx::TypeProto::Tensor>();
  tensor->set_elem_type(static_cast<int32_t>(type.dtype));
  if (type.shape) to_proto(*type.shape, tensor->mutable_shape());
  onnx::TypeProto proto;
  proto.set_allocated_tensor_type(tensor.release());
  if (type.kind == Kind::sequence || type.kind == Kind::optional_sequence) {
    auto sequence = std::make_unique<onnx::TypeProto::Sequence>();
    sequence->mutable_elem_type()->Swap(&proto);
    proto.set_allocated_sequence_type(sequence.release());
  }
  if (type.kind == Kind::optional || type.kind == Kind::optional_sequence) {
    auto optional = std::make_unique<onnx::TypeProto::Optional>();
    optional->mutable_elem_type()->Swap(&proto);
    proto.set_allocated_optional_type(optional.release());
  }
  return proto;
}

Type type_from_proto(const onnx::TypeProto& proto) {
  Type type;
  const onnx::TypeProto* inner = &proto;
  if (inner->has_optional_type()) {
    type.kind = Kind::optional;
    inner = &inner->optional_type().elem_type();
  }
  if (inner->has_sequence_type()) {
    type.kind = type.kind == Kind::optional ? Kind::optional_sequence : Kind::sequence;
    inner = &inner->sequence_type().elem_type();
  }
  if (!inner->has_tensor_type()) return {};
  type.dtype = static_cast<DType>(inner->tensor_type().elem_type());
  if (inner->tensor_type().has_shape()) type.shape = shape_from_proto(inner->tensor_type().shape());
  return type;
}

Shape shape_from_proto(const onnx::TensorShapeProto& proto) {
  Shape shape;
  for (const auto& dim : proto.dim()) {
    if (dim.has_dim_value() && dim.dim_value() >= 0) {
      shape.emplace_back(dim.dim_value());
    } else if (dim.has_dim_param() && !dim.dim_param().empty()) {
      shape.push_back(Dim::symbol(dim.dim_param()));
    } else {
      shape.emplace_back();
    }
  }
  return shape;
}

onnx::TensorProto to_proto(const Tensor& tensor) {
  onnx::TensorProto proto;
  proto.set_data_type(static_cast<int32_t>(tensor.dtype()));
  for (int64_t d : tensor.dims()) proto.add_dims(d);
  const Tensor bytes = pack(tensor);
  proto.set_raw_data(bytes.data(), bytes.nbytes());
  return proto;
}

onnx::AttributeProto to_proto(const std::string& name, const Attr& attr) {
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
    for (int64_t i : *is) proto.add_ints(i);
  } else if (const auto* fs = std::get_if<Floats>(&attr)) {
    proto.set_type(onnx::AttributeProto::FLOATS);
    for (double f : *fs) proto.add_floats(static_cast<float>(f));
  } else if (const auto* ss = std::get_if<Strings>(&attr)) {
    proto.set_type(onnx::AttributeProto::STRINGS);
    for (const auto& s : *ss) proto.add_strings(s);
  } else if (const auto* t = std::get_if<Tensor>(&attr)) {
    proto.set_type(onnx::AttributeProto::TENSOR);
    *proto.mutable_t() = to_proto(*t);
  }
  return proto;
}

}  // namespace steep
