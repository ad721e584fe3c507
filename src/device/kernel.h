// What the engine knows of a kernel: it computes one node with resolved pointers. Providers offer,
// per op, an ordered list of candidates, fastest first; each either makes a kernel for the exact
// types of the node or declines with a reason. All decisions and all scratch are settled here, at
// plan time: execute() neither allocates nor finds out that something is unsupported.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "steep/provider.h"
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

/// What a candidate sees of `n`. REQUIRES: concrete types. The spec borrows the node's strings.
NodeSpec spec_of(Node n);

/// The kernel of one node, behind the provider's table. Immutable; execute() may run in several
/// threads at once with different arguments.
class ProviderKernel {
 public:
  explicit ProviderKernel(const SteepKernel& raw);
  ~ProviderKernel();
  ProviderKernel(const ProviderKernel&) = delete;
  ProviderKernel& operator=(const ProviderKernel&) = delete;

  /// Runs on the node's inputs and outputs, in order; null pointers where absent. They are in the
  /// memory of the kernel's device, except inputs that it wants on the host. Scratch is aligned to
  /// 64 bytes. Throws DataError for wrong values (an index out of range), before writing. With a
  /// stream it enqueues only, and such errors come from Device::sync().
  void execute(const void* const* in, void* const* out, void* scratch,
               SteepStream stream = nullptr) const {
    const SteepArgs args{
        .size = sizeof(args), .in = in, .out = out, .scratch = scratch, .stream = stream};
    if (SteepError* error = raw_.execute(raw_.self, &args); error != nullptr) [[unlikely]]
      fail(error);
  }

  size_t scratch_bytes() const { return raw_.scratch_bytes; }
  double flops() const { return raw_.flops; }
  /// Pairs (input, output) that may share one buffer.
  std::span<const std::pair<int, int>> may_share() const { return may_share_; }
  /// Is input i to be in host memory?
  bool wants_on_host(int i) const { return i < 64 && (raw_.host_inputs >> i & 1U) != 0; }

 private:
  [[noreturn]] static void fail(SteepError* error);

  SteepKernel raw_;
  std::vector<std::pair<int, int>> may_share_;
};

class Device;

struct ChosenKernel {
  std::unique_ptr<ProviderKernel> kernel;
  std::string_view candidate;
};

/// A node that a device was offered and did not take.
struct Declined {
  std::string node, op, device;
  std::string reason;
  bool in_parts = false;  ///< its decomposition runs, instead of a kernel of the host
};

/// First candidate that accepts; a null kernel with all reasons in *why_not when none does.
ChosenKernel choose_kernel(const Device& device, const NodeSpec& node, std::string* why_not);

/// Runs one node now, on the host. `inputs` per node input; undefined tensors for absent ones.
/// Throws ProviderError when no kernel accepts it.
std::vector<Tensor> run_node(const Device& host, Node n, std::span<const Tensor> inputs);

/// The same for a node whose output shapes depend on data: one tensor per output, undefined where
/// nothing reads it. REQUIRES: host.data_shaped(n.op()). Throws ShapeError and DataError for inputs
/// that do not fit.
std::vector<Tensor> run_data_shaped(const Device& host, Node n, std::span<const Tensor> inputs);

}  // namespace steep
