// Runs a plan: calls kernels in order, with the addresses of their operands.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/memory.h"
#include "runtime/profiler.h"

namespace steep {

/// One execution: its arena, addresses, and the objects that must live until it ends.
struct Frame {
  std::shared_ptr<void> arena;
  std::vector<std::shared_ptr<void>> device_arenas;  ///< by device, from 1
  std::vector<std::shared_ptr<void>> streams;        ///< by device, from 1
  std::vector<bool> crossing;    ///< by device: copies from or to the host's values are running
  std::vector<std::byte*> base;  ///< by buffer: its address
  std::vector<Tensor> inputs;    ///< by graph input
  std::vector<std::shared_ptr<void>> outputs;  ///< by output buffer, while a later phase reads it
  int64_t seed[2] = {0, 0};                    ///< the values of the seed input
};

/// The worst value in an array. Infinities are often intended (masks), NaN never is.
enum class Worst { finite, infinite, nan };

struct RunOptions {
  Profiler* profiler = nullptr;
  bool check_finite = false;
  bool* wrote_states = nullptr;  ///< unless null, set to true before the first state is overwritten
};

/// A plan and its memory. Several frames may be in progress, but only one thread at a time may run
/// one. acquire(), release() and forget_frames() are thread-safe.
class Executable {
 public:
  /// Copies constants to other devices. Throws ProviderError and OutOfMemoryError.
  Executable(Plan plan, std::shared_ptr<MemoryPool> pool);

  const Plan& plan() const { return plan_; }
  /// A frame with its arena and constants in place.
  std::unique_ptr<Frame> acquire();
  void release(std::unique_ptr<Frame> frame);
  /// Frees the frames that wait for the next runs, with the arenas that they keep.
  void forget_frames();

  /// Binds input `index` (into Graph::inputs()) for this frame. The frame keeps a handle of the
  /// tensor until it is released.
  void bind_input(Frame& frame, size_t index, const Tensor& tensor) const;
  void bind_state(Frame& frame, size_t index, void* data) const;
  /// Runs one phase and returns its outputs in order. Throws the errors of kernels. Throws
  /// DataError, which names the first node whose result is not finite, if options ask for this
  /// check. Throws InterruptedError unless a state has changed already. When it returns or throws,
  /// other devices have finished their work.
  std::vector<Tensor> run(Frame& frame, Phase phase, const RunOptions& options) const;
  /// Whether a step of the backward phase reads the bytes of input `index` (into Graph::inputs()).
  bool backward_reads_input(size_t index) const;
  /// For each forward output, in order, whether a step of the backward phase reads its buffer.
  std::vector<bool> read_by_backward() const;

 private:
  void look_at_steps();
  void copy_constants();
  void bind_arenas(Frame& frame);
  void allocate_outputs(Frame& frame, Phase phase) const;
  std::vector<Tensor> outputs_of(const Frame& frame, Phase phase) const;
  void check_all_fed(const Frame& frame) const;
  void run_on_devices(Frame& frame, size_t begin, size_t end, const RunOptions& options) const;
  void run_steps(Frame& frame, size_t begin, size_t end, const RunOptions& options) const;
  void cross(Frame& frame, const Step& step, void* to, const void* from) const;
  void wait_for_copies(Frame& frame) const;
  void sync(Frame& frame) const;
  Worst worst_there(const Frame& frame, const Step& step, Value v, const void* data) const;
  Worst worst_input(const Frame& frame, const Step& step, const void* const* in) const;
  void check_outputs(const Frame& frame, const Step& step, Worst operands, void* const* out) const;

  Plan plan_;
  std::shared_ptr<MemoryPool> pool_;
  std::vector<int> input_buffer_;   // by graph input
  std::vector<int> state_buffer_;   // by graph state
  size_t first_update_ = 0;         // the first step that overwrites a state, if there is one
  std::vector<bool> writes_state_;  // by step
  std::vector<bool> on_host_;       // by step: the host reads or writes its memory during the step
  Device* pins_ = nullptr;          // its pinned memory holds the host's arena; may be null
  std::vector<std::shared_ptr<void>> device_constants_;  // by buffer; null: no such constant
  struct Idle {
    std::mutex mutex;  // guards the list only: memory of frames is released without the lock
    std::vector<std::unique_ptr<Frame>> frames;
  };
  std::unique_ptr<Idle> idle_ = std::make_unique<Idle>();
};

}  // namespace steep
