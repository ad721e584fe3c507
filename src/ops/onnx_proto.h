// Converts Steep's types, tensors and attributes to ONNX messages and back, for ONNX's shape
// inference and its builders of function bodies.
#pragma once

#include <onnx/onnx_pb.h>

#include <string>

#include "ir/attr.h"
#include "ir/type.h"

namespace steep {

/// Appends the dims; unknown dims stay empty.
void to_proto(const Shape& shape, onnx::TensorShapeProto* proto);
/// Leaves out the shape when the rank is unknown.
onnx::TypeProto to_proto(const Type& type);
Shape shape_from_proto(const onnx::TensorShapeProto& proto);
/// The dtype is undefined for types that Steep does not have: sequences of sequences, maps.
Type type_from_proto(const onnx::TypeProto& proto);
/// Copies the bytes.
onnx::TensorProto to_proto(const Tensor& tensor);
/// Doubles are rounded to float. REQUIRES: not a Body.
onnx::AttributeProto to_proto(const std::string& name, const Attr& attr);

}  // namespace steep
