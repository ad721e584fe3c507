// A kernel of the CPU: a C++ object behind the SteepKernel that the engine sees. For each op,
// kernel files offer an ordered list of candidates, fastest first. A candidate builds a kernel for
// the exact types of the node, or declines with a reason. The build settles all decisions and all
// scratch: execute() does not allocate, and cannot find that something is unsupported.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/kernel.h"

namespace steep::cpu {

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

/// Immutable after construction; several threads may call execute() at once with different
/// arguments.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Throws DataError for wrong values in the caller's data (an index out of range), before it
  /// writes.
  virtual void execute(const KernelArgs& args) const = 0;

  /// Bytes of scratch that execute() needs.
  size_t scratch_bytes = 0;
  /// Floating-point operations of one execution, for traces; 0 for kernels that are bound by
  /// memory.
  double flops = 0;
  /// Pairs (input, output) that may share one buffer: the kernel reads each input element before it
  /// writes the output element at the same address.
  std::vector<std::pair<int, int>> may_share{};
};

struct Candidate {
  std::string_view op;    ///< canonical operator
  std::string_view name;  ///< shown in plan dumps and traces: "onednn", "simd", "reference"
  /// The kernel, or nullptr with the reason in *why_not ("dtype is float64").
  std::unique_ptr<Kernel> (*make)(const NodeSpec& node, std::string* why_not);
};

/// Candidates for `op`, fastest first; empty when there are none. Thread-safe.
const std::vector<Candidate>& candidates(std::string_view op);

/// A kernel and the name of its candidate.
struct MadeKernel {
  std::unique_ptr<Kernel> kernel{};
  std::string_view candidate{};
};

/// Makes the kernel of the first candidate that accepts; with `only`, of the candidate of that
/// name. Returns a null kernel, and all reasons in *why_not, when none accepts. For tests and
/// benchmarks: the engine tries the candidates one by one, through the provider's table.
MadeKernel make_kernel(const NodeSpec& node, std::string_view only, std::string* why_not);

// Requests to the engine, through the table that it gave this provider (steep/provider.h).

/// Throws InterruptedError when the current call was asked to stop, or, within a Team, when another
/// thread of the loop has failed. Costs a read of the clock.
void poll();

/// Throws OutOfMemoryError when an allocation of `bytes` exceeds the call's memory budget.
void require_bytes(size_t bytes, const std::string& received);

/// For threads that share a loop: while a Team lives, poll() also throws once `failed` is true.
class Team {
 public:
  explicit Team(const std::atomic<bool>& failed);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  const std::atomic<bool>* before_;
};

}  // namespace steep::cpu
