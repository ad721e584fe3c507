// Operators and optimizers of the user's own (steep/ops.h): what is registered, and what an import
// takes of it. An operator becomes a function of the model that calls it, as if the file had held
// it.
#pragma once

#include <onnx/onnx_pb.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/read/node_names.h"

namespace steep {

/// The gradient of an operator in a model: a function of it, and what the outputs are.
struct GradientCall {
  std::string function;  ///< function_id()
  std::vector<int> wrt;  ///< output k is the gradient of input wrt[k]
};

/// Functions of this domain are optimizers.
inline constexpr std::string_view kOptimizerDomain = "steep.optimizer";

/// A gradient as its function gives it: output k is the gradient of input wrt[k] of the operator.
struct CustomGradient {
  onnx::FunctionProto function;
  std::vector<int> wrt;
};

/// A checked operator.
struct CustomOp {
  onnx::FunctionProto body;  ///< of one that a provider offers without a decomposition: no nodes
  std::optional<CustomGradient> gradient{};
  std::string provider{};  ///< that offers it (ops/offered.h); empty: the user's own
  int64_t since = 0;       ///< the version of its domain, from which on it is this one
};

/// A checked optimizer.
struct CustomOptimizer {
  onnx::FunctionProto body;  ///< (parameter, gradient, states…, lr, step) → (parameter, …)
  onnx::ModelProto library;  ///< the same, and all functions that it calls; no graph
  std::vector<std::string> states;  ///< names of its inputs
};

/// The domain of gradients' functions, which have their operators' names: files cannot use it.
inline constexpr char kGradientDomain[] = "steep.gradient";

/// What is registered at one time; never changes.
struct CustomFunctions {
  std::map<std::string, std::shared_ptr<const CustomOp>> ops;                ///< by function_id()
  std::map<std::string, std::shared_ptr<const CustomOptimizer>> optimizers;  ///< by name
};

/// What is registered now. From any thread.
std::shared_ptr<const CustomFunctions> custom_functions();
/// Changes it, one caller at a time: `change` gets a copy, which counts once it returns.
void change_custom_functions(const std::function<void(CustomFunctions&)>& change);

/// Adds to the model the registered operators that its nodes call, and those that these call, with
/// their gradients. Returns the latter by function_id() of the operator.
/// Throws ModelError naming the node: for a function of the model that is registered otherwise, and
/// for a node that has too many results, an attribute that the operator does not have, or lacks one
/// without a default, or is of a version of the domain before the operator's.
std::unordered_map<std::string, GradientCall> add_custom_functions(onnx::ModelProto* model);
/// The same, of what `own` holds.
std::unordered_map<std::string, GradientCall> add_custom_functions(onnx::ModelProto* model,
                                                                   const CustomFunctions& own);

/// What tells functions apart: their nodes, whatever these and their values are called.
std::string identity_of(const onnx::FunctionProto& function);
/// Calls `visit` on each node of a function, those of bodies included.
void each_node_of(const onnx::FunctionProto& function,
                  const std::function<void(const onnx::NodeProto&)>& visit);
/// All that a function declares, those without a default first.
std::vector<std::string> attribute_names(const onnx::FunctionProto& function);
/// "my.Round"
std::string qualified(const onnx::FunctionProto& function);

}  // namespace steep
