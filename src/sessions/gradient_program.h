// A graph that runs forward and backward as a tape asks for it: PyTorch's autograd, for one.
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
  /// Inputs whose gradients backward() gives. A name that the graph does not have gets none.
  std::vector<std::string> input_gradients{};
  /// Inputs that somebody may write to between forward and backward. A backward that reads them
  /// reads copies, made in forward.
  std::vector<std::string> may_change{};
  /// By output: may the caller write to it between forward and backward? Backward then reads bytes
  /// of its own. None, when empty; an output without a gradient always may.
  std::vector<bool> results_may_change{};
  /// Nobody writes to what forward reads, so that it may run again on that: no copies are made.
  bool inputs_stay = false;
  Limits limits{};
  Precision precision = Precision::fp32;
  MemoryLimit memory_limit{};
  std::set<std::string> disabled_passes{};  ///< by name
  Devices devices{};
};

/// Which outputs receive a gradient. An absent gradient is left out of the graph, since adding
/// zeros of a vocabulary's width costs as much as a layer: hence one Program per pattern. All
/// false: no backward part.
using GradientPattern = std::vector<bool>;

/// One forward run that may be asked for its backward, any number of times. Keeps its inputs,
/// because backward may ask for another pattern of gradients than expected, or run twice. Movable
/// between threads; to be used by one at a time.
struct GradientRun {
  uint64_t program = 0;  ///< which one ran
  GradientPattern pattern{};
  std::vector<Tensor> inputs{};
  std::vector<Tensor> copies{};     ///< of all inputs, made where forward may have to run again
  std::vector<uint64_t> digests{};  ///< of inputs, by which writes to them show; without copies
  bool moved = false;    ///< set by who put another tensor of the same values into `inputs`
  bool is_kept = false;  ///< set by who may ask for another backward: copies of the inputs are made
  bool changed = false;  ///< set by who knows that one that may change did: its values are gone
  uint64_t seed = 0;
  std::unique_ptr<PendingRun> pending{};  ///< null once backward has used it
};

/// Whether the inputs of a run without copies were written to since forward. For large arrays it
/// compares a sample of the elements.
bool shows_writes(const GradientRun& run);

/// Compiles a Program for each pattern of gradients that it meets. Thread-safe: calls take turns,
/// and whoever waits for one must not hold Python's interpreter lock.
class GradientProgram {
 public:
  /// Throws ModelError, also for a pass that does not exist.
  explicit GradientProgram(Graph graph, GradientProgramOptions options = {});
  GradientProgram(const GradientProgram&) = delete;
  GradientProgram& operator=(const GradientProgram&) = delete;

  /// Names of the inputs that are to be fed, in order.
  std::vector<std::string> input_names() const;
  /// Per output: does a gradient of it reach anything that wants one?
  const GradientPattern& differentiable() const { return differentiable_; }
  /// Does the graph draw random numbers?
  bool random() const { return random_; }

  /// Runs the graph on `run.inputs` with `run.seed`; the rest of `run` is filled in, for backward()
  /// where `gradients` are wanted. Throws as Program::forward().
  ForwardResult forward(GradientRun& run, bool gradients);

  /// Gradients of what the options name, in order; undefined where nothing flows. `gradients` are
  /// those of the outputs, undefined where there is none. Inputs are read where they were, or
  /// in `run.inputs` if `run.moved`. Throws as Program::rebind() and backward(), and DataError for
  /// another program's run, and where forward has to run again and the run's inputs have changed.
  /// shows_writes() checks this if `run.changed` is not set.
  std::vector<Tensor> backward(GradientRun& run, std::span<const Tensor> gradients);

  /// Compiles for inputs of these types, without running.
  PlanInfo plan(std::span<const Type> inputs, bool gradients);
  /// Graph and plan for inputs of these types (Program::dump).
  /// Program::memory_report().
  MemoryReport memory_report(std::span<const Type> inputs, bool gradients);
  std::string dump(std::span<const Type> inputs, bool gradients,
                   DumpFormat format = DumpFormat::text);
  /// The compiled graph as a model to look at (Program::compiled_model).
  std::string compiled_model(std::span<const Type> inputs, bool gradients);
  /// Records all runs, from now on.
  void start_profile();
  /// Ends it; returns the events (Profiler::to_json). Throws DataError when it was not started.
  std::string end_profile();
  /// Ends it; writes them. Throws DataError when it was not started, IoError.
  void write_profile(const std::filesystem::path& path);
  /// The most that runs took at one time so far.
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
  GradientPattern expected_;      // of the next run: as the last one
  bool foreseen_ = false;         // was the last one as expected?
  std::vector<bool> may_change_;  // by input
  bool random_ = false;
  ProgramSet<GradientPattern> programs_;
  std::map<GradientPattern, GradientPattern> flows_;  // of each: is there a gradient, by wanted one
};

}  // namespace steep
