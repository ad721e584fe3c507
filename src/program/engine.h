// The engine: from a graph to a running step. The first file to read; engine.cc calls the stages in
// order.
//
//   Graph g = import_model(bytes).graph;               // model/
//   auto grads = add_gradients(g, ...);                // autodiff/
//   Program program(std::move(g), {});                 // specialise → passes → plan, at each new
//   input signature program.forward(inputs) … program.backward(run, output_gradients)
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
  size_t cache_size = 16;  ///< specialisations kept (least recently used goes first)
  /// After each node look for NaN and infinity; throw DataError naming the first node that made one
  /// (infinity from finite operands, NaN from operands without), or the input or state with NaN.
  bool check_finite = false;
  uint64_t seed = 0;           ///< of dropout and other random ops
  MemoryLimit memory_limit{};  ///< of each run; a graph that runs in segments is refused
  Limits limits{};
  Devices devices{};
};

/// What one specialisation is and costs.
struct PlanInfo {
  size_t arena_bytes = 0;   ///< the planned peak of intermediate values
  size_t output_bytes = 0;  ///< handed to the caller at each run
  size_t constant_bytes = 0;
  size_t run_bytes = 0;     ///< what the memory limit bounds
  size_t memory_limit = 0;  ///< 0: none
  size_t kernels = 0;
  double specialise_ms = 0;  ///< binding shapes, passes, planning and building kernels
  std::vector<CompileStage> stages{};
};

class Executable;

/// One forward run that waits for its backward: owns its arena and holds what backward needs.
/// Dropping it frees the arena for the next run, from any thread at any time. Several may be
/// outstanding. Movable between threads, not shared by them.
class PendingRun {
 public:
  ~PendingRun();
  /// Does the graph run in segments, so that rebind() throws?
  bool in_segments() const;

 private:
  friend class Program;
  friend class Executable;
  PendingRun(std::shared_ptr<MemoryPool> pool, int threads);
  struct State;
  std::unique_ptr<State> state_;
};

/// As ForwardResult, for graphs with sequences and optionals among their inputs or outputs.
struct DataResult {
  std::vector<Datum> outputs;
  std::unique_ptr<PendingRun> pending;
};

struct ForwardResult {
  std::vector<Tensor> outputs;          ///< the graph's forward outputs, in order
  std::unique_ptr<PendingRun> pending;  ///< null when the graph has no backward part
  /// By output: will backward read its bytes, so that nobody may change them before? Never, of one
  /// that may change (ir/graph.h).
  std::vector<bool> read_by_backward{};
};

/// A graph ready to run at any input shapes. Specialisations are made at the first run of each
/// signature and cached. Graphs with shapes that depend on data, or with control flow or sequences,
/// run in segments (flow/segment.h). Not thread-safe: one call at a time.
class Program {
 public:
  explicit Program(Graph graph, ProgramOptions options = {});
  ~Program();
  Program(Program&&) noexcept;
  Program& operator=(Program&&) noexcept;

  /// Runs the forward part, and updates if there is no backward part. `inputs` in the order of the
  /// graph's forward inputs (but for the seed, ir/seed.h, which the engine feeds).
  /// Inputs are borrowed: with a backward part their bytes must stay unchanged until it ran, and
  /// handles are held until then. Throws ShapeError or DataError, naming the input, before anything
  /// is written. Of those that `may_change`, by input, backward reads copies, made now: only where
  /// it reads them.
  ForwardResult forward(std::span<const Tensor> inputs, const std::vector<bool>& may_change = {});

  /// As forward(), for inputs and outputs of any kind.
  DataResult forward_data(std::span<const Datum> inputs);

  /// Lets the backward of a run read its inputs where they are now: at `inputs`, in the order of
  /// forward(). Their bytes are to be those of the forward; states and copies stay where they were
  /// then.
  /// Throws ShapeError where an input has another type than it had, and ProviderError for a graph
  /// that runs in segments, whose values may lie within its inputs.
  void rebind(PendingRun& run, std::span<const Tensor> inputs);

  /// Runs the backward part: gradients of the outputs in the order of the backward inputs. Consumes
  /// the run. Returns the backward outputs in order. Throws DataError for a run of another program,
  /// ProviderError in a process forked since when it had more than one thread. When it throws, some
  /// states may be updated and others not: see wrote_states().
  std::vector<Tensor> backward(std::unique_ptr<PendingRun> run, std::span<const Tensor> inputs);

  /// Binds the bytes of a state; borrowed from then on, and updated in place by updates. Throws
  /// ModelError when there is no such state, ShapeError for bytes of another type.
  void bind_state(const std::string& name, Tensor tensor);

  /// Did the last backward(), or forward() of a graph without a backward part, write over a state?
  bool wrote_states() const;

  /// The most that arenas, outputs and constants of the runs so far took at one time, states aside.
  size_t peak_bytes() const;
  /// Specialises for these inputs without running. Cached like a run's. All zero for a graph that
  /// runs in segments: how these are planned shows only as it runs.
  PlanInfo plan(std::span<const Type> inputs);
  /// What the plan for these inputs keeps and computes again, and what others would cost. Throws
  /// OutOfMemoryError where no plan fits the limit, ProviderError for a graph that runs in
  /// segments.
  MemoryReport memory_report(std::span<const Type> inputs);
  /// From now on the caller holds so many bytes besides (MemoryLimit::held). Plans with which that
  /// is too much are made anew.
  void set_held_bytes(size_t held);
  /// The specialised graph after its passes as a model to look at: see write_compiled(). Of a graph
  /// that runs in segments, as it was before these.
  std::string compiled_model(std::span<const Type> inputs);
  /// The specialised graph, its kernels and the memory plan. A graph that runs in segments is
  /// planned as it runs: these are then the plans of the runs so far, and no passes are shown.
  std::string dump(std::span<const Type> inputs, DumpFormat format = DumpFormat::text);
  /// Types of the outputs for inputs of these types; of a graph that runs in segments, as far as
  /// they are known before.
  std::vector<Type> output_types(std::span<const Type> inputs);
  const Graph& graph() const;
  /// Number of the next forward run: part of the key of every random draw. Saved and restored by
  /// checkpoints.
  uint64_t run_count() const;
  void set_run_count(uint64_t count);
  void set_seed(uint64_t seed);
  /// Records one event per kernel while not null. Not owned.
  void set_profiler(Profiler* profiler);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Evaluates one graph once, without caching: constant folding, reference results in tests.
std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs);

}  // namespace steep
