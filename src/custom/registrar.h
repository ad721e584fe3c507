// Functions on their way into what is registered (model/custom/functions.h): all that is asked of
// them.
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

/// Of with_our_errors(), around what is asked of functions.
inline constexpr const char* kRefusedFunction = "ONNX's library refuses the function.";

/// Throws ModelError for bytes that are no function.
onnx::FunctionProto parse_function(std::span<const std::byte> bytes);

/// Throws the ModelError of a function.
[[noreturn]] void refuse_function(const onnx::FunctionProto& f, std::string what,
                                  std::string expected, std::string received, std::string remedy);

/// Functions that are registered together or not at all. All throw ModelError naming the function.
class Registrar {
 public:
  void add_op(onnx::FunctionProto f, std::optional<onnx::FunctionProto> gradient);
  void add_optimizer(onnx::FunctionProto f);
  /// An operator that a provider offers; `f` is its decomposition, or without nodes what there is
  /// to know of it.
  void add_offered(onnx::FunctionProto f, std::optional<onnx::FunctionProto> gradient,
                   std::string provider, int64_t since, OfferedTypes types);
  /// Registers them; returns the new names.
  std::vector<std::string> finish(const Limits& limits);

 private:
  void add(std::shared_ptr<CustomOp> op, std::optional<onnx::FunctionProto> gradient);
  std::vector<std::string> put_into(CustomFunctions& all) const;
  void check_recursion(const CustomFunctions& all) const;
  void check_as_model(const CustomFunctions& all, const Limits& limits) const;

  std::vector<onnx::FunctionProto> functions_;
  std::map<std::string, std::shared_ptr<CustomOp>> ops_;
  std::map<std::string, std::shared_ptr<CustomOptimizer>> optimizers_;
  std::map<std::string, OfferedTypes> offered_;  // of ops_
};

}  // namespace steep
