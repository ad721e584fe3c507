// Functions: the model's own, those that users and providers gave operators, and those by which
// ONNX defines its composite operators. They are imported where they are called.
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
  std::string prefix;                 ///< in front of the names of the function's nodes
  const NameScope* around = nullptr;  ///< whose names its nodes may read
};
/// The nodes of the function. Returns its outputs, null ones for names that nothing defines. Throws
/// ModelError: too many inputs, calls nested too deep, a function that calls itself.
std::vector<Binding> inline_function(Importer& importer, const FunctionCall& call);

/// A function of ONNX's, and a node that calls it.
struct Composite {
  onnx::NodeProto call;
  onnx::FunctionProto function;
};
/// What ONNX defines `op` by; nothing where it does not, or where there is an OpDef.
std::optional<Composite> composite_of(const Call& call, const std::string& op,
                                      const std::vector<Value>& in, const Attrs& attrs,
                                      int outputs);

/// custom_gradient.cc: a function of the file or of a registered operator, with the gradient that
/// is registered for it.
std::vector<Binding> call_function(Importer& importer, const FileNode& node,
                                   const onnx::FunctionProto& function);

/// offered.cc: an operator that a provider offers, of which `function` is what it means.
std::vector<Binding> call_offered(Importer& importer, const FileNode& node,
                                  const onnx::FunctionProto& function);

}  // namespace steep
