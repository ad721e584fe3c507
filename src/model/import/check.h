// Checks whether Steep can read a model: versions, operators, names, tensors; then runs ONNX's
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

#include "model/custom/functions.h"
#include "model/import/import.h"
#include "model/read/body_names.h"
#include "model/read/model_file.h"
#include "model/read/node_names.h"
#include "model/read/tensor_proto.h"
#include "steep/error.h"

namespace steep {

/// An operator of the domain com.microsoft that Steep supports (contrib/contrib.h).
bool is_contrib(const onnx::NodeProto& node);
/// Moves nodes of operators that ONNX Runtime writes in ONNX's domain to com.microsoft.
void move_contrib(onnx::ModelProto* model);
/// A model that passed the checks. `tensors` holds its tensors; the messages keep only their names
/// and dtypes.
struct CheckedModel {
  onnx::ModelProto proto;
  std::unique_ptr<TensorTable> tensors;
  std::set<std::string> unranked_inputs;         ///< inputs without a declared shape
  std::map<std::string, ErrorParts> left_out{};  ///< see ImportedModel
  BodyNames body_names{};
  std::set<std::string> sparse{};  ///< float initializers that are sparse in the file
  /// Gradients of registered operators: see model/custom/functions.h.
  std::unordered_map<std::string, GradientCall> gradients{};
};

/// Throws as import_model(). Reports all unknown operators and domains at once.
CheckedModel read_model(std::span<const std::byte> bytes, const ImportOptions& options,
                        const std::filesystem::path& folder,
                        const std::map<std::string, Tensor>& values = {});

}  // namespace steep
