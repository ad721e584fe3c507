// What the nodes and functions of a file are called, and which of them are ours.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace steep {

/// ONNX's operators for training.
inline constexpr std::string_view kTrainingDomain = "ai.onnx.preview.training";
/// ONNX's operators that may yet change.
inline constexpr std::string_view kPreviewDomain = "ai.onnx.preview";

/// A node of the domain "steep": GradientOf and WithGradient (ops/defs/with_gradient.cc), as
/// captures of PyTorch have them; WithGradient_4_1 in models of gradients, where the numbers are
/// those of operands and results.
bool says_gradient(const onnx::NodeProto& node);
/// A node of the domain "steep" of which ONNX's standard has no equal: OpDef::in_files. No file is
/// to hold any other operator of ours.
bool is_steep(const onnx::NodeProto& node);
/// "Relu", or "ai.onnx.preview.training.Adam" where the domain is not the default one.
std::string canonical_name(const onnx::NodeProto& node);

/// The version of the default domain in a list of imports, 0 when absent.
int64_t default_opset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

/// Identity of a model-local function, and of the one that a node calls.
std::string function_id(const onnx::FunctionProto& function);
std::string function_id(const onnx::NodeProto& node);
/// The node's name, or for a nameless node that of its first output: what messages call it.
std::string display_name(const onnx::NodeProto& node);

}  // namespace steep
