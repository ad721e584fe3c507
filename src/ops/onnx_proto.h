// Our types, tensors and attributes as ONNX's messages: what its shape inference and its builders
// of function bodies read.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>

#include "ir/attr.h"
#include "ir/type.h"

namespace steep {

/// Appends the dims; unknown ones stay empty.
void to_proto(const Shape& shape, onnx::TensorShapeProto* proto);
/// Without a shape where the rank is not known.
onnx::TypeProto to_proto(const Type& type);
Shape shape_from_proto(const onnx::TensorShapeProto& proto);
/// An undefined dtype for what Steep has no type for: sequences of sequences, maps.
Type type_from_proto(const onnx::TypeProto& proto);
/// A copy of the bytes.
onnx::TensorProto to_proto(const Tensor& tensor);
/// Doubles are rounded to float. REQUIRES: not a Body.
onnx::AttributeProto to_proto(const std::string& name, const Attr& attr);

}  // namespace steep
