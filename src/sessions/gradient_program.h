// A graph that runs forward and backward on demand, for a tape such as PyTorch's autograd.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "program/program_set.h"

namespace steep {

struct GradientProgramOptions {
  /// Inputs whose gradients backward() returns. Names that the graph does not have get no gradient.
  std::vector<std::string> input_gradients{};
  /// Inputs that other code may write to between forward and backward. If backward reads such an
  /// input, it reads a copy that forward made.
  std::vector<std::string> may_change{};
  /// For each output, whether the caller may write to it between forward and backward. Backward
  /// then reads bytes of its own. Empty: false for all. An output without a gradient may always be
  /// written to.
  std::vector<bool> results_may_change{};
  /// No other code writes to the inputs, so forward can run again on them, and no copies are made.
  bool inputs_stay = false;
  Limits limits{};
  Precision precision = Precision::fp32;
  MemoryLimit memory_limit{};
  std::set<std::string> disabled_passes{};  ///< by name
  int64_t threads = 0;                      ///< as ThreadBound takes it
  Devices devices{};
};

/// For each output, whether it receives a gradient. An absent gradient is left out of the graph,
/// because adding zeros as wide as a vocabulary costs as much as a layer. So each pattern has a
/// Program of its own. All false: no backward part.
using GradientPattern = std::vector<bool>;

/// One forward run. Backward may be called any number of times. The run keeps its inputs, because
/// backward may need another pattern of gradients than expected, or run twice. May move between
/// threads; not thread-safe.
struct GradientRun {
  uint64_t program = 0;  ///< the id of the GradientProgram that ran
  GradientPattern pattern{};
  std::vector<Tensor> inputs{};
  std::vector<Tensor> copies{};     ///< of all inputs, if forward may have to run again
  std::vector<uint64_t> digests{};  ///< hashes of inputs, to detect writes; used without copies
  bool moved = false;    ///< the caller sets it if `inputs` has other tensors with the same values
  bool is_kept = false;  ///< the caller sets it if backward may run again: inputs are copied
  bool changed = false;  ///< the caller sets it if an input that may change has changed
  uint64_t seed = 0;
  std::unique_ptr<PendingRun> pending{};  ///< null once backward has used it
};

/// Whether the inputs of a run without copies were written to since forward. For large arrays only
/// a sample of the elements is compared.
bool shows_writes(const GradientRun& run);

/// Compiles a Program for each pattern of gradients that occurs. Thread-safe: calls run one after
/// the other. A thread that may have to wait must not hold Python's interpreter lock.
class GradientProgram {
 public:
  /// Throws ModelError, also for the name of an unknown pass.
  explicit GradientProgram(Graph graph, GradientProgramOptions options = {});
  GradientProgram(const GradientProgram&) = delete;
  GradientProgram& operator=(const GradientProgram&) = delete;

  /// Names of the inputs that forward() requires, in order.
  std::vector<std::string> input_names() const;
  /// For each output, whether its gradient reaches an input whose gradient is wanted.
  const GradientPattern& differentiable() const { return differentiable_; }
  /// Whether the graph draws random numbers.
  bool random() const { return random_; }

  /// Runs the graph on `run.inputs` with `run.seed`. Fills the other fields of `run`, with what
  /// backward() needs if `gradients` is true. Throws as Program::forward().
  ForwardResult forward(GradientRun& run, bool gradients);

  /// Returns the gradients of GradientProgramOptions::input_gradients, in order; undefined if no
  /// gradient reaches the input. `gradients` are those of the outputs, undefined for outputs
  /// without one. Inputs are read in place; if `run.moved`, in `run.inputs`. Throws as
  /// Program::rebind() and backward(). Throws DataError for a run of another program, and if
  /// forward has to run again but the inputs have changed: `run.changed` says so, else
  /// shows_writes() checks it.
  std::vector<Tensor> backward(GradientRun& run, std::span<const Tensor> gradients);

  /// Compiles for inputs of these types, without running.
  PlanInfo plan(std::span<const Type> inputs, bool gradients);
  /// Plans memory for inputs of these types (Program::memory_report).
  MemoryReport memory_report(std::span<const Type> inputs, bool gradients);
  /// Graph and plan for inputs of these types (Program::dump).
  std::string dump(std::span<const Type> inputs, bool gradients,
                   DumpFormat format = DumpFormat::text);
  /// The compiled graph as a model, for viewers (Program::compiled_model).
  std::string compiled_model(std::span<const Type> inputs, bool gradients);
  /// Records all runs, from now on.
  void start_profile();
  /// Stops recording; returns the events (Profiler::to_json). Throws DataError unless it was
  /// started.
  std::string end_profile();
  /// Stops recording; writes the events. Throws DataError unless it was started, IoError.
  void write_profile(const std::filesystem::path& path);
  /// The most memory that runs held at one time so far, in bytes.
  size_t peak_bytes();
  /// Programs compiled so far.
  size_t program_count();

 private:
  void find_differentiable();
  GradientPattern first_guess() const;
  GradientPattern pattern(bool gradients) const;
  Program& compile(const GradientPattern& pattern);
  Graph with_gradients(const GradientPattern& pattern);
  void keep_copies(GradientRun& run) const;
  ForwardResult start(GradientRun& run, std::span<const Tensor> inputs);

  const uint64_t id_;
  Graph graph_;
  const std::vector<std::string> input_gradients_;
  const bool inputs_stay_;
  GradientPattern differentiable_;
  GradientPattern expected_;      // of the next run: that of the last one
  bool foreseen_ = false;         // whether the last backward had the expected pattern
  std::vector<bool> may_change_;  // by input
  bool random_ = false;
  ProgramSet<GradientPattern> programs_;
  std::map<GradientPattern, GradientPattern> flows_;  // by pattern: inputs with a gradient
};

}  // namespace steep
