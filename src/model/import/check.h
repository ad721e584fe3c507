// Is this a model that Steep can read? Versions, operators, names, tensors; then ONNX's own
// checker.
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <unordered_map>

#include "model/import/import.h"
#include "model/read/body_names.h"
#include "model/read/tensor_proto.h"

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
bool is_own(const onnx::NodeProto& node);
/// An operator of ONNX Runtime's own domain that we know (contrib/contrib.h).
bool is_contrib(const onnx::NodeProto& node);
/// Moves to that domain the nodes of such operators that ONNX Runtime writes in ONNX's own.
void move_contrib(onnx::ModelProto* model);
/// "Relu", or "ai.onnx.preview.training.Adam" where the domain is not the default one.
std::string canonical_name(const onnx::NodeProto& node);

/// The gradient of an operator in a model: a function of it, and what the outputs are.
struct GradientCall {
  std::string function;  ///< function_id()
  std::vector<int> wrt;  ///< output k is the gradient of input wrt[k]
};

/// A model that passed. Its tensors are in `tensors`; the messages keep only their names and
/// dtypes.
struct CheckedModel {
  onnx::ModelProto proto;
  std::unique_ptr<TensorTable> tensors;
  std::set<std::string> unranked_inputs;         ///< inputs that say nothing of their shape
  std::map<std::string, ErrorParts> left_out{};  ///< see ImportedModel
  BodyNames body_names{};
  std::set<std::string> sparse{};  ///< float initializers, sparse in the file
  /// Of registered operators: see model/custom/functions.h
  std::unordered_map<std::string, GradientCall> gradients{};
};

/// Throws ModelError: see import.h, also for `leave_out`. Lists all unknown operators and domains
/// at once. `registered`: operators that are registered are known.
CheckedModel read_model(std::span<const std::byte> bytes, const Limits& limits, bool leave_out,
                        const std::filesystem::path& folder,
                        const std::map<std::string, Tensor>& given = {}, bool registered = true);

/// A model as it stands in its bytes, within the limits. Throws ModelError.
onnx::ModelProto parse_model(std::span<const std::byte> bytes, const Limits& limits);
/// The bytes of a regular file. Throws IoError; ModelError for more than `max_bytes`.
std::string read_file(const std::filesystem::path& path, size_t max_bytes);

/// The version of the default domain in a list of imports, 0 when absent.
int64_t default_opset(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

/// Identity of a model-local function, and of the one that a node calls.
std::string function_id(const onnx::FunctionProto& function);
std::string function_id(const onnx::NodeProto& node);
/// The node's name, or for a nameless node that of its first output: what messages call it.
std::string display_name(const onnx::NodeProto& node);

}  // namespace steep
