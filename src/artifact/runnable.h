// A program of an artifact, ready to run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "artifact/artifact.h"
#include "plan/executable.h"
#include "runtime/memory.h"

namespace steep {

/// Plans when it is first run, and again where fewer threads are left than it was planned for. One
/// call at a time.
class Runnable {
 public:
  /// `program` and `pool` outlive it.
  Runnable(const ArtifactProgram& program, std::shared_ptr<MemoryPool> pool);

  Purpose purpose() const { return program_.purpose; }
  /// What the caller feeds: forward inputs but for the seed, in order.
  const std::vector<Value>& inputs() const { return inputs_; }
  /// Of the forward part, in order.
  std::vector<Value> outputs() const;
  /// Has each of these the type of its input?
  bool takes(std::span<const Tensor> arrays) const;

  /// Between forward() and backward(): the memory of the run. Dropping it ends the run.
  class Run {
   public:
    explicit Run(Executable& executable);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    friend class Runnable;
    Executable& executable_;
    std::unique_ptr<Frame> frame_;
  };

  /// `states` by name. `seed` and `run`: what random operators read. Throws ProviderError naming
  /// each node that no kernel takes, and what kernels throw. REQUIRES: takes(arrays).
  std::vector<Tensor> forward(std::span<const Tensor> arrays,
                              const std::map<std::string, Tensor>& states, uint64_t seed,
                              uint64_t run, std::unique_ptr<Run>* pending);
  /// `fed`: the backward inputs, by name. *wrote: was anything written over a state, even when it
  /// throws?
  std::vector<Tensor> backward(Run& run, const std::map<std::string, Tensor>& fed, bool* wrote);

 private:
  void prepare();

  const ArtifactProgram& program_;
  std::shared_ptr<MemoryPool> pool_;
  std::vector<Value> inputs_;
  std::vector<size_t> input_at_;  // by caller's input: index into Graph::inputs()
  std::optional<Executable> executable_;
  int threads_ = 0;  // that it was planned for
};

}  // namespace steep
