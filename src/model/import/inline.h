// Functions: those of the model, those that users and providers register for operators, and those
// by which ONNX defines its composite operators. They are inlined where they are called.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/import/importer.h"

namespace steep {

struct FunctionCall {
  const onnx::NodeProto& node;  ///< its attributes are arguments, too
  const onnx::FunctionProto& function;
  std::vector<Binding> inputs;
  const CallFrame& frame;             ///< the caller's
  std::string prefix;                 ///< prefix of the names of the function's nodes
  const NameScope* around = nullptr;  ///< a scope whose names its nodes may read
};
/// Imports the nodes of the function. Returns its outputs, null for names that nothing defines.
/// Throws ModelError: too many inputs, calls nested too deeply, recursion.
std::vector<Binding> inline_function(Importer& importer, const FunctionCall& call);

/// A function that ONNX defines, with a node that calls it.
struct Composite {
  onnx::NodeProto call;
  onnx::FunctionProto function;
};
/// The function by which ONNX defines `op`; nothing when there is none, or when `op` has an OpDef.
std::optional<Composite> composite_of(const Call& call, const std::string& op,
                                      const std::vector<Value>& in, const Attrs& attrs,
                                      int outputs);

/// custom_gradient.cc: a function of the file or of a registered operator, with its registered
/// gradient.
std::vector<Binding> call_function(Importer& importer, const FileNode& node,
                                   const onnx::FunctionProto& function);

/// offered.cc: an operator that a provider offers; `function` is its decomposition.
std::vector<Binding> call_offered(Importer& importer, const FileNode& node,
                                  const onnx::FunctionProto& function);

}  // namespace steep
