// The definition of one operator. A file ops/defs/<name>.cc defines a constant OpDef for one
// operator, or for each operator of a family that shares a rule; ops/registry.cc lists them.
// src/README.md says where kernels are.
//
//   // ops/defs/tanh.cc
//   Grads tanh_vjp(Node n, const Grads& dy) { … return {dy[0] * (1.0 - y * y)}; }
//   extern const OpDef kTanh = {.name = "Tanh", .elementwise = true, .vjp = tanh_vjp};
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ir/graph.h"

namespace steep {

/// Gradients in the order of a node's inputs (when a rule returns them) or of its outputs (when a
/// rule gets them). A null Value means "none": no gradient reaches that output or flows to that
/// input.
using Grads = std::vector<Value>;

/// add_gradients() of autodiff/, for rules that differentiate a graph themselves: a loop's body or
/// an operator's decomposition.
using Differentiate = std::vector<Value> (*)(Graph& graph, std::span<const Value> outputs,
                                             std::span<const Value> seeds,
                                             std::span<const Value> wrt, Phase phase);

/// A rewrite rule for the nodes of an operator. A rule that differentiates a graph takes
/// Differentiate as its last argument.
template <typename Result, typename... Given>
class Rule {
 public:
  using Plain = Result (*)(Given...);
  using OfGraphs = Result (*)(Given..., Differentiate);

  constexpr Rule() = default;
  constexpr Rule(Plain rule) : plain_(rule) {}
  constexpr Rule(OfGraphs rule) : of_graphs_(rule) {}

  constexpr explicit operator bool() const { return plain_ != nullptr || of_graphs_ != nullptr; }
  Result operator()(Given... given, Differentiate differentiate) const {
    return plain_ != nullptr ? plain_(given...) : of_graphs_(given..., differentiate);
  }

 private:
  Plain plain_ = nullptr;
  OfGraphs of_graphs_ = nullptr;
};

/// Vector-Jacobian product: adds the nodes that compute the gradients of the node's inputs from
/// those of its outputs. The rule does calculus only. The engine accumulates, sums over broadcast
/// axes, drops gradients that nothing needs, checks count, shape and dtype, and names the nodes.
/// Returns one entry per input (missing entries at the end count as null; null entries past the
/// last input are ignored). At least one entry of `dy` is not null.
using Vjp = Rule<Grads, Node, const Grads&>;

/// Output types from input types, for Steep's own ops; ONNX's ops use ONNX's inference. Throws
/// ShapeError when the inputs do not fit.
using Infer = std::vector<Type> (*)(Node n);

/// The node's outputs, expressed in other ops. Gives a fused op its reference result, its gradient
/// (when it has no vjp) and a fall-back on providers that have no kernel for it. Returns an empty
/// list for operands that it does not support.
using Decompose = std::vector<Value> (*)(Node n);

/// As Decompose, for an operator that has a kernel. Used for the export to other runtimes and for
/// second derivatives. Providers do not use it, because its loops and computed indices are too
/// slow. Extents may be unknown; throws ModelError with the node's name where they must be known.
using ExportDecomposition = Rule<std::vector<Value>, Node>;

/// Completes the types that ONNX's inference gave to the outputs, where it leaves known facts out.
using Refine = void (*)(Node n);

/// Shape arithmetic: see ops/shape_arithmetic.h.
struct Element;
using Elements = std::vector<Element>;
using ElementRule = std::optional<Elements> (*)(Node n,
                                                const std::vector<std::optional<Elements>>& inputs);

/// The operand that the node returns unchanged, so that its readers can read the operand instead;
/// null for other nodes. REQUIRES: input 0 and output 0 are present.
using Simplify = Value (*)(Node n);

/// When all outputs are bytes of input 0 in place: the byte offset of each output in it. Empty
/// otherwise. REQUIRES: concrete types.
using ViewOffsets = Ints (*)(Node n);

/// An attribute that holds a number or a text, and its default value.
struct Attribute {
  std::string_view name;
  std::variant<int64_t, double, std::string_view> otherwise;
};

/// Upper limit of windows, blocks and sizes: products of two of them, and sums of a few, do not
/// overflow.
inline constexpr int64_t kFar = int64_t{1} << 30;

/// An input that holds extents. When it is a constant, its elements must lie in [least, kFar].
struct SizeInput {
  int input;
  int64_t least;
};

struct OpDef {
  std::string_view name;  ///< canonical: ONNX's name, "steep.Name", or "domain.Name" if offered
  /// One of Steep's own operators that captured PyTorch models contain, in the domain "steep".
  bool in_files = false;
  std::vector<Attribute> attributes{};
  /// Ranks of the inputs: a number; "2+": at least 2; "=": the rank of input 0; "<": one less; ".":
  /// any; "e": one element of any rank (kernels read it as a number); "s": must not broadcast input
  /// 0.
  std::string_view ranks{};
  std::vector<SizeInput> sizes{};
  /// Output element i depends on (broadcast) input elements i only; for a random op also on the
  /// index i.
  bool elementwise = false;
  bool view = false;  ///< output 0 has the bytes of input 0, in the same order, with another shape
  /// The derivative is zero or undefined everywhere (Shape, Equal, ArgMax): gradients stop here
  /// without an error.
  bool stops_gradient = false;
  bool dataless = false;  ///< results depend on extents or chance, never on the data
  /// The shapes of its outputs depend on data, or it handles sequences or subgraphs. It runs on its
  /// own, between the segments of the graph that can be planned.
  bool dynamic = false;
  /// The decomposition reads the values of the inputs from this index on; they must be constants
  /// then. -1: it reads no values.
  int reads_from = -1;
  /// Reads only the parts of its inputs that the indices select: of a larger input about as many
  /// bytes as the results have.
  bool reads_part = false;
  /// The attribute that names the kernel on devices; "": the name is the operator's.
  std::string_view kernel_attribute{};
  int seed = -1;  ///< index of the input that is the graph's seed (ir/seed.h); -1: none
  std::vector<int> settings{};  ///< inputs that configure the operator
  Vjp vjp{};
  Infer infer = nullptr;
  Refine refine = nullptr;
  ElementRule elements = nullptr;
  Decompose decompose = nullptr;
  ExportDecomposition export_decomposition{};
  Simplify simplify = nullptr;
  ViewOffsets view_offsets = nullptr;
  /// Output i overwrites the state at input updates_input[i] (optimizer ops). -1: output i
  /// overwrites nothing.
  std::vector<int> updates_input{};
};

/// The op, or nullptr when Steep does not have it.
const OpDef* find_op(std::string_view name);
/// All ops except those that providers offer, sorted by name: the table that tests, docs and `steep
/// check` enumerate.
std::span<const OpDef* const> all_ops();

/// The attribute of `n`, or its declared default. Throws InternalError when the operator declares
/// no such attribute, ModelError when the node's attribute is of another kind.
int64_t integer_of(Node n, std::string_view name);
double real_of(Node n, std::string_view name);
std::string text_of(Node n, std::string_view name);
/// The default that `op` declares. Throws InternalError when it declares no such attribute.
int64_t default_integer(std::string_view op, std::string_view name);
double default_real(std::string_view op, std::string_view name);
/// The attributes of a node, with the declared defaults for those that it leaves out.
Attrs with_defaults(std::string_view op, const Attrs& attrs);
/// Whether `op` declares this attribute.
bool declares(std::string_view op, std::string_view name);

}  // namespace steep
