// Operators of ONNX Runtime's domain com.microsoft that exported and optimised files contain, each
// defined as a function of ONNX's operators. The function is built for each call: its nodes depend
// on attributes, ranks and present inputs. There is one file per family; contrib.cc lists the
// operators. Their specification: ONNX Runtime's docs/ContribOperators.md.
//
//   // contrib/gelu.cc
//   Results gelu(const ContribCall&, ContribBody& f) {
//     f.add("y = Gelu (X)");
//     return {"y"};
//   }
//   extern const ContribOp kGelu = {.name = "Gelu", .inputs = {"X"}, .outputs = 1, .build = gelu};
#pragma once

#include <onnx/onnx_pb.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op_def.h"

namespace steep {

inline constexpr std::string_view kContribDomain = "com.microsoft";

struct ContribOp;

/// A call of such an operator, with the types that are known at import.
struct ContribCall {
  const ContribOp& op;
  std::string node;          ///< name for messages
  std::vector<Type> inputs;  ///< undefined dtype for absent inputs; may be shorter than op.inputs
  Attrs attrs;
  std::vector<bool> wanted;  ///< per output: some node reads it

  bool has(size_t i) const { return i < inputs.size() && inputs[i].dtype != DType::undefined; }
  bool wants(size_t output) const { return output < wanted.size() && wanted[output]; }
  /// The attribute, or the operator's default. Throws ModelError when the attribute is of another
  /// kind.
  int64_t integer(std::string_view name) const;
  /// An attribute that is 0 or 1. Throws ModelError for other values, which runtimes interpret
  /// differently.
  bool flag(std::string_view name) const;
  double real(std::string_view name) const;
  std::string text(std::string_view name) const;
  /// Throws ModelError when the rank is unknown.
  size_t rank(size_t input) const;
  /// An extent on which the function depends, at most kFar. A negative `axis` counts from the end.
  /// Throws ModelError when the extent is unknown or greater, or the axis does not exist.
  int64_t extent(size_t input, int64_t axis) const;

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy) const;
};

/// The nodes of a function; all are of ONNX's default domain.
class ContribBody {
 public:
  static constexpr int64_t kOpset = 23;

  explicit ContribBody(onnx::FunctionProto* function) : function_(function) {}

  /// Nodes in ONNX's text form: "s = Add (a, b)  y = Relu (s)".
  void add(const std::string& nodes);
  /// Sets an attribute of the last node. Numbers from a file may have no text form (NaN, infinity).
  void real(const std::string& attribute, double value);
  /// Adds a constant with the dtype of the value `like`.
  void scalar(const std::string& name, double value, const std::string& like);
  /// Adds a constant, int64 [n].
  void ints(const std::string& name, const Ints& values);

 private:
  onnx::FunctionProto* function_;
};

/// The names of the outputs in the body; "" for an absent output.
using Results = std::vector<std::string>;

struct ContribOp {
  std::string_view name;
  std::vector<std::string_view> inputs;  ///< a name with "?" at the end: optional
  int outputs = 1;                       ///< the maximal number
  std::vector<Attribute> attributes{};
  std::vector<std::string_view> lists{};  ///< attributes that are lists of numbers
  bool in_default_domain = false;  ///< files write it in ONNX's domain, which does not have it
  Results (*build)(const ContribCall& call, ContribBody& body) = nullptr;
};

/// All supported operators, sorted by name.
std::span<const ContribOp* const> contrib_ops();
/// nullptr when the operator is not supported.
const ContribOp* find_contrib(std::string_view name);

/// Advice on an operator of the domain that is not supported; "" when there is none.
std::string_view why_contrib_is_refused(std::string_view name);

/// The function for a call. Throws ModelError with node and operator: for a missing input, too many
/// inputs or outputs, an attribute that the operator does not have, and for what its build function
/// refuses.
onnx::FunctionProto contrib_function(const ContribCall& call);

}  // namespace steep
