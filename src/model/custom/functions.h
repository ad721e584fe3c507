// Operators and optimizers that the user registers (steep/ops.h), and how an import uses them. A
// registered operator becomes a function of the model that calls it, as if the file contained it.
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

/// The gradient of an operator in a model: a function of the model.
struct GradientCall {
  std::string function;  ///< function_id()
  std::vector<int> wrt;  ///< output k is the gradient of input wrt[k]
};

/// The domain of functions that are optimizers.
inline constexpr std::string_view kOptimizerDomain = "steep.optimizer";

/// The gradient of a registered operator: output k of the function is the gradient of input wrt[k].
struct CustomGradient {
  onnx::FunctionProto function;
  std::vector<int> wrt;
};

/// A registered operator that passed the checks.
struct CustomOp {
  onnx::FunctionProto body;  ///< without nodes if a provider offers it without a decomposition
  std::optional<CustomGradient> gradient{};
  std::string provider{};  ///< the provider that offers it (ops/offered.h); empty: the user
  int64_t since = 0;       ///< first version of its domain that has this operator
};

/// A registered optimizer that passed the checks.
struct CustomOptimizer {
  onnx::FunctionProto body;  ///< (parameter, gradient, states…, lr, step) → (parameter, …)
  onnx::ModelProto library;  ///< the function and all functions that it calls; no graph
  std::vector<std::string> states;  ///< names of the state inputs
};

/// The domain of gradient functions, which are named after their operators. Files must not use it.
inline constexpr char kGradientDomain[] = "steep.gradient";

/// An immutable snapshot of all registrations.
struct CustomFunctions {
  std::map<std::string, std::shared_ptr<const CustomOp>> ops;                ///< by function_id()
  std::map<std::string, std::shared_ptr<const CustomOptimizer>> optimizers;  ///< by name
};

/// The current registrations. Thread-safe.
std::shared_ptr<const CustomFunctions> custom_functions();
/// Changes the registrations, one caller at a time: `change` edits a copy, which becomes current
/// when it returns.
void change_custom_functions(const std::function<void(CustomFunctions&)>& change);

/// Adds to the model the registered operators that its nodes call, the operators that these call,
/// and their gradients. Returns the gradients by function_id() of the operator. Throws ModelError
/// with the node's name when a function of the model is registered with another body, and when a
/// node has too many outputs, has an attribute that the operator does not have, lacks an attribute
/// without a default, or imports a version of the domain before the operator's.
std::unordered_map<std::string, GradientCall> add_custom_functions(onnx::ModelProto* model);
/// As above, with the registrations in `own`.
std::unordered_map<std::string, GradientCall> add_custom_functions(onnx::ModelProto* model,
                                                                   const CustomFunctions& own);

/// A text that is equal for equal functions: the nodes, independent of names of nodes and values.
std::string identity_of(const onnx::FunctionProto& function);
/// Calls `visit` on each node of a function, also on nodes in bodies.
void each_node_of(const onnx::FunctionProto& function,
                  const std::function<void(const onnx::NodeProto&)>& visit);
/// All attributes that a function declares, those without a default first.
std::vector<std::string> attribute_names(const onnx::FunctionProto& function);
/// "my.Round"
std::string qualified(const onnx::FunctionProto& function);

}  // namespace steep
