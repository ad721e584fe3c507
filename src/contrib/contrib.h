// The operators of ONNX Runtime's domain com.microsoft that exported and optimised files contain,
// each as a function of ONNX's operators, written for the call: how many nodes it has depends on
// attributes, on ranks, and on the inputs that are there. One file a family; contrib.cc lists them.
// What they mean: ONNX Runtime's docs/ContribOperators.md.
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

/// A call of one of them: what is known of it before there are values.
struct ContribCall {
  const ContribOp& op;
  std::string node;          ///< what messages call it
  std::vector<Type> inputs;  ///< of undefined dtype where left out; may be shorter than op.inputs
  Attrs attrs;
  std::vector<bool> wanted;  ///< by output: somebody reads it

  bool has(size_t i) const { return i < inputs.size() && inputs[i].dtype != DType::undefined; }
  bool wants(size_t output) const { return output < wanted.size() && wanted[output]; }
  /// The attribute, or the operator's default. Throws ModelError when it is of another kind.
  int64_t integer(std::string_view name) const;
  /// Of 0 and 1. Throws ModelError when it is neither: other runtimes differ in what they take it
  /// for.
  bool flag(std::string_view name) const;
  double real(std::string_view name) const;
  std::string text(std::string_view name) const;
  /// Throws ModelError when it is not known.
  size_t rank(size_t input) const;
  /// An extent that the function is written with, at most kFar. `axis` may count from the back.
  /// Throws ModelError when it is not known or greater, or there is no such axis.
  int64_t extent(size_t input, int64_t axis) const;

  [[noreturn]] void fail(std::string what, std::string expected, std::string received,
                         std::string remedy) const;
};

/// The nodes of a function, which are of ONNX's default domain.
class ContribBody {
 public:
  static constexpr int64_t kOpset = 23;

  explicit ContribBody(onnx::FunctionProto* function) : function_(function) {}

  /// Nodes in ONNX's text form: "s = Add (a, b)  y = Relu (s)".
  void add(const std::string& nodes);
  /// An attribute of the last node: numbers from a file need not have a text form.
  void real(const std::string& attribute, double value);
  /// A number of the dtype of the value `like`.
  void scalar(const std::string& name, double value, const std::string& like);
  /// int64 [n]
  void ints(const std::string& name, const Ints& values);

 private:
  onnx::FunctionProto* function_;
};

/// The names of a call's results in its body; "" for one that there is not.
using Results = std::vector<std::string>;

struct ContribOp {
  std::string_view name;
  std::vector<std::string_view> inputs;  ///< with "?" behind the name: may be left out
  int outputs = 1;                       ///< at most
  std::vector<Attribute> attributes{};
  std::vector<std::string_view> lists{};  ///< attributes that are lists of numbers
  bool in_default_domain = false;         ///< files have it in ONNX's domain, which has none
  Results (*build)(const ContribCall& call, ContribBody& body) = nullptr;
};

/// Those that we know, sorted by name.
std::span<const ContribOp* const> contrib_ops();
/// nullptr for another.
const ContribOp* find_contrib(std::string_view name);

/// What to do about an operator of the domain that we do not know; "" for one of no known kind.
std::string_view why_contrib_is_refused(std::string_view name);

/// The function that a call means. Throws ModelError naming node and operator: for an input that
/// lacks, too many inputs or outputs, an attribute that the operator does not have, and what the
/// operator's file refuses.
onnx::FunctionProto contrib_function(const ContribCall& call);

}  // namespace steep
