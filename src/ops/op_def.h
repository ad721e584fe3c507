// What Steep knows of one operator. A file ops/defs/<name>.cc defines a constant OpDef for one
// operator, or for each of a family that shares a rule; ops/registry.cc lists them. src/README.md
// says where kernels are.
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

/// Gradients in the order of a node's inputs (returned by a rule) or of its outputs (given to a
/// rule). A null Value means "none": no gradient reaches that output, or none flows to that input.
using Grads = std::vector<Value>;

/// add_gradients() of autodiff/, for rules that differentiate a graph themselves: the body of a
/// loop, the parts of an operator.
using Differentiate = std::vector<Value> (*)(Graph& graph, std::span<const Value> outputs,
                                             std::span<const Value> seeds,
                                             std::span<const Value> wrt, Phase phase);

/// What an operator does to its nodes; that of one that differentiates a graph takes Differentiate
/// as its last argument.
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

/// Vector-Jacobian product: adds the nodes that turn the gradients of the node's outputs into those
/// of its inputs. Calculus only. The engine accumulates, sums over broadcast axes, drops what
/// nobody needs, checks count, shape and dtype, and names the nodes. Returns one entry per input (a
/// shorter list means null for the rest; null entries past the last input are ignored). At least
/// one entry of `dy` is not null.
using Vjp = Rule<Grads, Node, const Grads&>;

/// Output types from input types, for Steep's own ops; ONNX's ops use ONNX's own inference.
/// Throws ShapeError when inputs do not fit.
using Infer = std::vector<Type> (*)(Node n);

/// The node's outputs, expressed in other ops. Gives a fused op its reference result, its gradient
/// (when it has no vjp) and a fall-back on providers without a kernel for it. Empty for operands
/// that it does not take apart.
using Decompose = std::vector<Value> (*)(Node n);

/// The same for an operator that is its kernel: what models for other runtimes are written with,
/// and what second derivatives go through. Providers do not use it: its loops and computed indices
/// are too slow. Extents may be unknown; throws ModelError naming the node where they must be
/// known.
using InParts = Rule<std::vector<Value>, Node>;

/// What ONNX's inference leaves open though it is known: sets types of outputs that it has given
/// types to.
using Refine = void (*)(Node n);

/// Shape arithmetic: see ops/shape_arithmetic.h.
struct Element;
using Elements = std::vector<Element>;
using ElementRule = std::optional<Elements> (*)(Node n,
                                                const std::vector<std::optional<Elements>>& inputs);

/// The operand that the node returns unchanged, so that its readers can read the operand instead;
/// null for other nodes. Input 0 and output 0 are there.
using Simplify = Value (*)(Node n);

/// By output: the byte offset at which it lies in input 0, when all are that input's bytes in
/// place; empty otherwise. REQUIRES: concrete types.
using ViewOffsets = Ints (*)(Node n);

/// An attribute that holds a number or a text, and its value where a node does not say.
struct Attribute {
  std::string_view name;
  std::variant<int64_t, double, std::string_view> otherwise;
};

/// No window, block or size reaches farther: products of two, and sums of a few, do not overflow.
inline constexpr int64_t kFar = int64_t{1} << 30;

/// An input that holds extents: as a constant, none is less, and none more than kFar.
struct SizeInput {
  int input;
  int64_t least;
};

struct OpDef {
  std::string_view name;  ///< canonical: ONNX's name, "steep.Name", or "domain.Name" if offered
  /// An operator of ours that captures of PyTorch are written with, in the domain "steep".
  bool in_files = false;
  std::vector<Attribute> attributes{};
  /// Ranks of the inputs: a number, "2+" at least that many, "=" as many as input 0, "<" one less,
  /// "." any; "e" for one element of any rank (what a kernel reads as a number has it), "s" for one
  /// that must not broadcast input 0.
  std::string_view ranks{};
  std::vector<SizeInput> sizes{};
  /// Output element i depends on (broadcast) input elements i only, or, where the op is random, on
  /// i itself.
  bool elementwise = false;
  bool view = false;  ///< output 0 is input 0's bytes, in the same order, under another shape
  /// The derivative is zero or undefined everywhere (Shape, Equal, ArgMax): gradients stop here,
  /// silently.
  bool stops_gradient = false;
  bool dataless = false;  ///< results hold extents of the operands, or chance, but no data
  /// The shapes of its outputs depend on data, or it handles sequences or subgraphs: it runs on its
  /// own, between the parts of the graph that can be planned.
  bool dynamic = false;
  /// Its decomposition reads the values of the inputs from this one on, which must be constants by
  /// then; -1: of none.
  int reads_from = -1;
  /// It reads the parts of its inputs that indices name: of each about as many bytes as its results
  /// have, where the input has more.
  bool reads_part = false;
  /// The attribute with the name under which devices have its kernels; "": the operator's own name.
  std::string_view kernel_attribute{};
  int seed = -1;                ///< the input that is the graph's seed (ir/seed.h); -1: none
  std::vector<int> settings{};  ///< inputs that configure the operator
  Vjp vjp{};
  Infer infer = nullptr;
  Refine refine = nullptr;
  ElementRule elements = nullptr;
  Decompose decompose = nullptr;
  InParts in_parts{};
  Simplify simplify = nullptr;
  ViewOffsets view_offsets = nullptr;
  /// Output i is written over the state at input inplace[i] (optimizer ops). -1: no such duty.
  std::vector<int> updates_input{};
};

/// The op, or nullptr when Steep does not know it.
const OpDef* find_op(std::string_view name);
/// All ops but those that providers offer, sorted by name: the table that tests, docs and
/// `steep check` enumerate.
std::span<const OpDef* const> all_ops();

/// The attribute of `n`, or what its operator declares. Throws InternalError when the operator
/// declares no such attribute, ModelError when the node's is of another kind.
int64_t integer_of(Node n, std::string_view name);
double real_of(Node n, std::string_view name);
std::string text_of(Node n, std::string_view name);
/// What `op` declares. Throws InternalError as above.
int64_t default_integer(std::string_view op, std::string_view name);
double default_real(std::string_view op, std::string_view name);
/// The attributes of a node, with what its operator declares for those that it leaves out.
Attrs with_defaults(std::string_view op, const Attrs& attrs);
/// Whether `op` declares such an attribute.
bool declares(std::string_view op, std::string_view name);

}  // namespace steep
