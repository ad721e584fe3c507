// A program of an artifact that can run.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "artifact/artifact.h"
#include "plan/executable.h"
#include "runtime/memory.h"

namespace steep {

/// Plans the program at the first run, and again if fewer threads are available than the plan
/// assumes. Not thread-safe.
class Runnable {
 public:
  /// `program` must outlive this object. `pool` is shared.
  Runnable(const ArtifactProgram& program, std::shared_ptr<MemoryPool> pool);

  Purpose purpose() const { return program_.purpose; }
  /// The inputs that the caller gives, in order: the forward inputs without the seed.
  const std::vector<Value>& inputs() const { return inputs_; }
  /// The forward outputs, in order.
  std::vector<Value> outputs() const;
  /// Whether the arrays have the types of the inputs.
  bool takes(std::span<const Tensor> arrays) const;

  /// The memory of a run between forward() and backward(). Destroying it ends the run.
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

  /// `states` by name. `seed` and `run` determine the random numbers. Throws ProviderError that
  /// names each node without a kernel, and the errors of kernels. REQUIRES: takes(arrays).
  std::vector<Tensor> forward(std::span<const Tensor> arrays,
                              const std::map<std::string, Tensor>& states, uint64_t seed,
                              uint64_t run, std::unique_ptr<Run>* pending);
  /// `arrays`: the backward inputs, by name. *wrote is set to true before the first state is
  /// written.
  std::vector<Tensor> backward(Run& run, const std::map<std::string, Tensor>& arrays, bool* wrote);

 private:
  void prepare();

  const ArtifactProgram& program_;
  std::shared_ptr<MemoryPool> pool_;
  std::vector<Value> inputs_;
  std::vector<size_t> input_at_;  // by caller's input: index into Graph::inputs()
  std::optional<Executable> executable_;
  int threads_ = 0;  // the number that the plan assumes
};

}  // namespace steep
