// Names of nodes and functions of a file, and predicates for Steep's own nodes.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace steep {

/// ONNX's operators for training.
inline constexpr std::string_view kTrainingDomain = "ai.onnx.preview.training";
/// ONNX's domain for operators that are still experimental.
inline constexpr std::string_view kPreviewDomain = "ai.onnx.preview";

/// Whether this is GradientOf or WithGradient of the domain "steep" (ops/defs/with_gradient.cc).
/// PyTorch captures contain them. Gradient models contain WithGradient_4_1, with the numbers of
/// operands and outputs.
bool says_gradient(const onnx::NodeProto& node);
/// Whether this is a node of the domain "steep" with OpDef::in_files: an operator without an
/// equivalent in ONNX. Files must not contain other operators of Steep.
bool is_steep(const onnx::NodeProto& node);
/// "Relu", or "ai.onnx.preview.training.Adam" when the domain is not the default one.
std::string canonical_name(const onnx::NodeProto& node);

/// The version of the default domain in a list of imports, 0 when absent.
int64_t default_opset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

/// The identifier of a model-local function, and of the function that a node calls.
std::string function_id(const onnx::FunctionProto& function);
std::string function_id(const onnx::NodeProto& node);
/// The name for messages: the node's name, or for a nameless node that of its first output.
std::string display_name(const onnx::NodeProto& node);

}  // namespace steep
