// From a graph to a running step. Sessions import a model and make the graph; a Program compiles it
// for each set of input types.
//
//   Graph g = import_model(bytes).graph;               // model/
//   auto grads = add_gradients(g, ...);                // autodiff/
//   Program program(std::move(g), {});
//   program.forward(inputs) …                          // for new input types:
//   program.backward(run, output_gradients)            // specialise → passes → plan
#pragma once

#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "flow/run_context.h"
#include "ir/graph.h"
#include "passes/precision.h"
#include "plan/memory_limit.h"
#include "runtime/profiler.h"
#include "steep/dump.h"
#include "steep/memory_report.h"

namespace steep {

struct ProgramOptions {
  std::set<std::string> disabled_passes{};  ///< by name, as `pass_names()` lists them
  Precision precision = Precision::fp32;
  size_t cache_size = 16;  ///< specialisations that are kept, the most recently used ones
  /// Check the results of each node. Throw DataError that names the first node that made an
  /// infinity from finite operands, or a NaN from operands without NaN; or the input or state that
  /// has NaN.
  bool check_finite = false;
  uint64_t seed = 0;           ///< of dropout and other random ops
  int64_t threads = 0;         ///< of the owner's calls, as ThreadBound takes it
  MemoryLimit memory_limit{};  ///< for each run; graphs that run in segments are refused
  Limits limits{};
  Devices devices{};
};

/// The sizes and costs of one specialisation.
struct PlanInfo {
  size_t arena_bytes = 0;   ///< the planned peak of intermediate values
  size_t output_bytes = 0;  ///< results for the caller, of each run
  size_t constant_bytes = 0;
  size_t run_bytes = 0;     ///< what the memory limit bounds
  size_t memory_limit = 0;  ///< 0: none
  size_t kernels = 0;
  double specialise_ms = 0;  ///< binding shapes, passes, planning and building kernels
  std::vector<CompileStage> stages{};
};

class Executable;

/// A forward run whose backward has not run yet. Owns its arena and keeps what backward reads.
/// Destroying it frees the arena for the next run; any thread may do so at any time. Several may
/// exist. May move between threads; not thread-safe.
class PendingRun {
 public:
  ~PendingRun();
  /// Whether the graph runs in segments, so that rebind() throws.
  bool in_segments() const;

 private:
  friend class Program;
  friend class Executable;
  PendingRun(std::shared_ptr<MemoryPool> pool, int threads);
  struct State;
  std::unique_ptr<State> state_;
};

/// Like ForwardResult, for graphs with sequences or optionals as inputs or outputs.
struct DataResult {
  std::vector<Datum> outputs;
  std::unique_ptr<PendingRun> pending;
};

struct ForwardResult {
  std::vector<Tensor> outputs;          ///< the graph's forward outputs, in order
  std::unique_ptr<PendingRun> pending;  ///< null when the graph has no backward part
  /// For each output, whether backward will read its bytes, so that they must not change before.
  /// Always false for outputs that may change (ir/graph.h).
  std::vector<bool> read_by_backward{};
};

/// A graph that can run at any input shapes. A specialisation is made at the first run with new
/// input types, and cached. Graphs whose shapes depend on data, and graphs with control flow or
/// sequences, run in segments (flow/segment.h). Not thread-safe.
class Program {
 public:
  explicit Program(Graph graph, ProgramOptions options = {});
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  /// Runs the forward part, and updates if there is no backward part. `inputs` has the graph's
  /// forward inputs in order, without the seed (ir/seed.h), which the engine adds. Inputs are
  /// borrowed: if there is a backward part, handles are kept and bytes must not change until it has
  /// run. Inputs for which `may_change` is true are the exception: if backward reads them, it reads
  /// copies that forward makes. Throws ShapeError or DataError, which name the input, before
  /// anything is written.
  ForwardResult forward(std::span<const Tensor> inputs, const std::vector<bool>& may_change = {});

  /// As forward(), for inputs and outputs of any kind.
  DataResult forward_data(std::span<const Datum> inputs);

  /// Makes the backward of a run read its inputs at another place: in `inputs`, in the order of
  /// forward(). They must have the same values as in forward(). States and copies stay where they
  /// are. Throws ShapeError if the type of an input has changed, and ProviderError for a graph that
  /// runs in segments, because its values may lie within its inputs.
  void rebind(PendingRun& run, std::span<const Tensor> inputs);

  /// Runs the backward part. `inputs` has the gradients of the outputs, in the order of the
  /// backward inputs. Consumes the run. Returns the backward outputs in order. Throws DataError for
  /// a run of another program, and ProviderError in a process that was forked since, if the run
  /// used more than one thread. If it throws, some states may be updated and others not: see
  /// wrote_states().
  std::vector<Tensor> backward(std::unique_ptr<PendingRun> run, std::span<const Tensor> inputs);

  /// Binds a state to `tensor`, whose bytes are borrowed from then on and which updates overwrite.
  /// Throws ModelError if there is no such state, ShapeError if its type differs.
  void bind_state(const std::string& name, Tensor tensor);

  /// Whether the last backward(), or forward() of a graph without a backward part, overwrote a
  /// state.
  bool wrote_states() const;

  /// The most memory that arenas, outputs and constants of runs took at one time so far, without
  /// states.
  size_t peak_bytes() const;
  /// Specialises for these inputs without running, and caches the result. All zero for a graph that
  /// runs in segments, whose plans are made during runs.
  PlanInfo plan(std::span<const Type> inputs);
  /// Returns the memory that is kept for the next runs to the system; those then take it anew.
  void release_memory();
  /// What the plan for these inputs keeps and computes again, and what other plans would cost.
  /// Throws OutOfMemoryError if no plan fits the limit, ProviderError for a graph that runs in
  /// segments.
  MemoryReport memory_report(std::span<const Type> inputs);
  /// Sets the memory that the caller holds besides, and what of the states lies in a file
  /// (MemoryLimit::held, offloaded). Plans that no longer fit are made again.
  void set_held_bytes(size_t held, size_t offloaded);
  /// The specialised graph, after its passes, as a model for viewers: see write_compiled(). For a
  /// graph that runs in segments: the graph before segmentation.
  std::string compiled_model(std::span<const Type> inputs);
  /// The specialised graph, its kernels and the memory plan. For a graph that runs in segments: the
  /// plans of the runs so far, without passes.
  std::string dump(std::span<const Type> inputs, DumpFormat format = DumpFormat::text);
  /// The types of the outputs for inputs of these types; for a graph that runs in segments, as far
  /// as they are known before a run.
  std::vector<Type> output_types(std::span<const Type> inputs);
  const Graph& graph() const;
  /// The number of the next forward run. It is part of the key of every random number. Checkpoints
  /// save and restore it.
  uint64_t run_count() const;
  void set_run_count(uint64_t count);
  void set_seed(uint64_t seed);
  /// While not null, gets one event per kernel. Not owned.
  void set_profiler(Profiler* profiler);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Evaluates a graph once, without caching: for constant folding, and reference results of tests.
std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs);

}  // namespace steep
