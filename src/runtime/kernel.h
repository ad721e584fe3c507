// A kernel computes one node with resolved pointers. Providers offer, per op, an ordered list of
// candidates, fastest first; each either builds a kernel for the exact types of the node or
// declines with a reason. All decisions and all scratch are settled here, at plan time: execute()
// neither allocates nor fails for want of support.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/attr.h"
#include "steep/tensor.h"

namespace steep {

/// What a candidate sees of an operand: exact dtype and extents, and the tensor when it is a
/// constant.
struct Operand {
  DType dtype = DType::undefined;  ///< undefined: the optional operand is absent
  Dims dims{};
  const Tensor* constant = nullptr;

  bool present() const { return dtype != DType::undefined; }
  int64_t size() const { return element_count(dims); }
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
};

/// What a candidate sees of a node. Valid only during the call.
struct NodeSpec {
  std::string_view name;
  std::string_view op;
  const Attrs& attrs;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;

  const Operand& in(size_t i) const;   ///< an absent operand when out of range
  const Operand& out(size_t i) const;  ///< as in()
};

/// Pointers for one execution, in the order of the node's inputs and outputs; null where absent.
/// Scratch is aligned to 64 bytes.
struct KernelArgs {
  const void* const* in;
  void* const* out;
  void* scratch;

  template <typename T>
  const T* input(size_t i) const {
    return static_cast<const T*>(in[i]);
  }
  template <typename T>
  T* output(size_t i) const {
    return static_cast<T*>(out[i]);
  }
};

/// Immutable after construction; execute() may run in several threads at once with different
/// arguments.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Throws DataError for values that the data's owner got wrong (an index out of range), before
  /// writing.
  virtual void execute(const KernelArgs& args) const = 0;

  /// Bytes of scratch that execute() needs.
  size_t scratch_bytes = 0;
  /// Floating-point operations of one execution, for traces; 0 where memory decides, not
  /// arithmetic.
  double flops = 0;
  /// Pairs (input, output) that may share one buffer: the kernel reads each input element before it
  /// writes the output element that takes its place.
  std::vector<std::pair<int, int>> may_share{};
};

struct Candidate {
  std::string_view op;    ///< canonical operator
  std::string_view name;  ///< shown in plan dumps and traces: "onednn", "simd", "reference"
  /// The kernel, or nullptr with the reason in *why_not ("dtype is float64").
  std::unique_ptr<Kernel> (*make)(const NodeSpec& node, std::string* why_not);
};

/// Computes a node whose output shapes depend on data. Of the outputs, `node` gives the dtypes
/// (undefined: not wanted). `inputs` as Operands: undefined where absent. Returns one tensor per
/// output, undefined where not wanted. Throws ShapeError and DataError for inputs that do not fit.
using DataShapedKernel = std::vector<Tensor> (*)(const NodeSpec& node,
                                                 std::span<const Tensor> inputs);

/// A device's kernels. Stateless.
class Provider {
 public:
  virtual ~Provider() = default;
  virtual std::string_view name() const = 0;
  /// The kernel of an operator whose output shapes depend on data; nullptr when there is none.
  virtual DataShapedKernel data_shaped(std::string_view op) const {
    static_cast<void>(op);
    return nullptr;
  }
  /// Candidates for `op`, fastest first; empty when there are none.
  virtual std::span<const Candidate> candidates(std::string_view op) const = 0;
};

struct ChosenKernel {
  std::unique_ptr<Kernel> kernel;
  std::string_view candidate;
};

/// First candidate that accepts; a null kernel with all reasons in *why_not when none does.
ChosenKernel choose_kernel(const Provider& provider, const NodeSpec& node, std::string* why_not);

}  // namespace steep
