// Checks functions, and adds them to the registered ones (model/custom/functions.h).
#pragma once

#include <onnx/onnx_pb.h>

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/custom/functions.h"
#include "model/read/library_errors.h"
#include "model/read/quote.h"
#include "ops/offered.h"
#include "runtime/memory.h"
#include "steep/error.h"
#include "steep/limits.h"

namespace steep {

/// The text for with_our_errors() around calls of ONNX's library on functions.
inline constexpr const char* kRefusedFunction = "ONNX's library refuses the function.";

/// Throws ModelError if the bytes are not a serialised function.
onnx::FunctionProto parse_function(std::span<const std::byte> bytes);

/// Throws a ModelError that names the function.
[[noreturn]] void refuse_function(const onnx::FunctionProto& f, std::string what,
                                  std::string expected, std::string received, std::string remedy);

/// Functions that are registered together or not at all. All members throw ModelError that names
/// the function.
class Registrar {
 public:
  void add_op(onnx::FunctionProto f, std::optional<onnx::FunctionProto> gradient);
  void add_optimizer(onnx::FunctionProto f);
  /// Adds an operator of a provider. `f` is its decomposition, or its signature: a function without
  /// nodes.
  void add_offered(onnx::FunctionProto f, std::optional<onnx::FunctionProto> gradient,
                   std::string provider, int64_t since, OfferedTypes types);
  /// Registers the functions. Returns the new names.
  std::vector<std::string> finish(const Limits& limits);

 private:
  void add(std::shared_ptr<CustomOp> op, std::optional<onnx::FunctionProto> gradient);
  std::vector<std::string> put_into(CustomFunctions& all) const;
  void check_recursion(const CustomFunctions& all) const;
  void check_as_model(const CustomFunctions& all, const Limits& limits) const;

  std::vector<onnx::FunctionProto> functions_;
  std::map<std::string, std::shared_ptr<CustomOp>> ops_;
  std::map<std::string, std::shared_ptr<CustomOptimizer>> optimizers_;
  std::map<std::string, OfferedTypes> offers_;  // for the operators of providers in ops_
};

}  // namespace steep
