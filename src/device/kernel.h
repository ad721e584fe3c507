// A kernel computes one node. For each operator a provider offers a list of candidates, fastest
// first. Each candidate either makes a kernel for the exact types of the node, or declines with a
// reason. All decisions are made at planning time, and all scratch memory is planned: execute()
// neither allocates memory nor finds that something is not supported.
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

/// An operand as a candidate sees it: exact dtype and extents, and the tensor if it is constant.
struct Operand {
  DType dtype = DType::undefined;  ///< undefined: an absent optional operand
  Dims dims{};
  const Tensor* constant = nullptr;

  bool present() const { return dtype != DType::undefined; }
  int64_t size() const { return element_count(dims); }
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
};

/// A node as a candidate sees it. Valid during the call only.
struct NodeSpec {
  std::string_view name;
  std::string_view op;
  const Attrs& attrs;
  std::vector<Operand> inputs;
  std::vector<Operand> outputs;

  const Operand& in(size_t i) const;   ///< an absent operand if out of range
  const Operand& out(size_t i) const;  ///< as in()
};

/// The spec of `n`. REQUIRES: concrete types. Borrows the node's strings.
NodeSpec spec_of(Node n);

/// The kernel of one node, from a provider. Immutable; several threads may call execute() at the
/// same time with different arguments.
class ProviderKernel {
 public:
  explicit ProviderKernel(const SteepKernel& raw);
  ~ProviderKernel();
  ProviderKernel(const ProviderKernel&) = delete;
  ProviderKernel& operator=(const ProviderKernel&) = delete;

  /// Runs on the node's inputs and outputs, in order; null pointers for absent ones. They are in
  /// the memory of the kernel's device, except inputs for which wants_on_host() is true. Scratch is
  /// aligned to 64 bytes. Throws DataError for wrong values (an index out of range), before
  /// anything is written. With a stream it only enqueues the work, and such errors come from
  /// Device::sync().
  void execute(const void* const* in, void* const* out, void* scratch,
               SteepStream stream = nullptr) const {
    const SteepArgs args{
        .size = sizeof(args), .in = in, .out = out, .scratch = scratch, .stream = stream};
    if (SteepError* error = raw_.execute(raw_.self, &args); error != nullptr) [[unlikely]]
      fail(error);
  }

  size_t scratch_bytes() const { return raw_.scratch_bytes; }
  double flops() const { return raw_.flops; }
  /// Pairs (input, output) that may share a buffer.
  std::span<const std::pair<int, int>> may_share() const { return may_share_; }
  /// Whether input i must be in host memory.
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

/// A node that a device did not accept.
struct Declined {
  std::string node, op, device;
  std::string reason;
  bool runs_decomposed = false;  ///< its decomposition runs, not a kernel of the host
};

/// The kernel of the first candidate that accepts. If none does, a null kernel, and all reasons in
/// *why_not.
ChosenKernel choose_kernel(const Device& device, const NodeSpec& node, std::string* why_not);

/// Runs one node on the host. `inputs`: one per input of the node, undefined for absent ones.
/// Throws ProviderError if no kernel accepts the node.
std::vector<Tensor> run_node(const Device& host, Node n, std::span<const Tensor> inputs);

/// The same for a node whose output shapes depend on data. Returns one tensor per output, undefined
/// if no node reads it. REQUIRES: host.data_shaped(n.op()). Throws ShapeError and DataError for
/// inputs that do not fit.
std::vector<Tensor> run_data_shaped(const Device& host, Node n, std::span<const Tensor> inputs);

}  // namespace steep
