// Runs a plan: kernels with resolved pointers, in order.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "plan/plan.h"
#include "runtime/memory.h"
#include "runtime/profiler.h"

namespace steep {

/// One execution under way: an arena, the pointers into it, and what must stay alive until it ends.
struct Frame {
  std::shared_ptr<void> arena;
  std::vector<std::shared_ptr<void>> device_arenas;  ///< by device, from 1
  std::vector<std::shared_ptr<void>> streams;        ///< likewise
  std::vector<bool> crossing;    ///< likewise: copies from or to the host's values are under way
  std::vector<std::byte*> base;  ///< by buffer: where its bytes begin
  std::vector<Tensor> inputs;    ///< by graph input
  std::vector<std::shared_ptr<void>> outputs;  ///< by output buffer, while a later phase reads it
  int64_t seed[2] = {0, 0};                    ///< what the seed input reads
};

/// The worst that an array holds. Infinities are often meant (masks), NaN never is.
enum class Worst { finite, infinite, nan };

struct RunOptions {
  Profiler* profiler = nullptr;
  bool check_finite = false;
  bool* wrote_states = nullptr;  ///< set, unless null, before anything is written over a state
};

/// A plan with its memory. Frames may run one after another in any interleaving, one thread at a
/// time; acquire() and release() are thread-safe.
class Executable {
 public:
  /// Takes the constants of other devices there. Throws ProviderError and OutOfMemoryError.
  Executable(Plan plan, std::shared_ptr<MemoryPool> pool);

  const Plan& plan() const { return plan_; }
  /// A frame with its arena and constants in place.
  std::unique_ptr<Frame> acquire();
  void release(std::unique_ptr<Frame> frame);

  /// Binds input `index` (into Graph::inputs()) for this frame; the handle is kept until the frame
  /// is released.
  void bind_input(Frame& frame, size_t index, const Tensor& tensor) const;
  void bind_state(Frame& frame, size_t index, void* data) const;
  /// Runs one phase and returns its outputs in order. Throws what kernels throw; DataError naming
  /// the first node whose result is not finite when that is checked; InterruptedError, unless a
  /// state has changed already. Other devices are done when it returns or throws.
  std::vector<Tensor> run(Frame& frame, Phase phase, const RunOptions& options) const;
  /// Does a step of the backward phase read the bytes of input `index` (into Graph::inputs())?
  bool backward_reads_input(size_t index) const;
  /// By forward output, in order: does a step of the backward phase read its buffer?
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
  size_t first_update_ = 0;         // the first step that writes over a state, if any does
  std::vector<bool> writes_state_;  // by step
  std::vector<bool> on_host_;       // by step: the host reads or writes its memory, here and now
  Device* pins_ = nullptr;          // whose pinned memory the host's arena is; null: nobody's
  std::vector<std::shared_ptr<void>> device_constants_;  // by buffer; null: not one
  struct Idle {
    std::mutex mutex;  // of the list alone: what a frame held is let go outside
    std::vector<std::unique_ptr<Frame>> frames;
  };
  std::unique_ptr<Idle> idle_ = std::make_unique<Idle>();
};

}  // namespace steep
