// The members of a Program: specialisations by input types, segments if no plan covers the graph,
// programs of bodies, states and the seed. program.cc has the public functions.
#pragma once

#include <list>
#include <string>
#include <string_view>
#include <unordered_map>

#include "flow/segment.h"
#include "passes/pipeline.h"
#include "program/program.h"
#include "program/rows_inputs.h"
#include "program/specialisation.h"
#include "runtime/memory.h"

namespace steep {

std::vector<Datum> to_data(std::span<const Tensor> tensors);

struct PendingRun::State {
  std::shared_ptr<MemoryPool> pool;  // the program's own
  int threads;                       // the number that the plan assumes
  std::shared_ptr<Specialisation> specialisation;
  std::unique_ptr<Frame> frame;
  std::optional<SegmentPosition> segmented;    // in segments: used instead of a frame
  std::vector<std::optional<Type>> gradients;  // in segments: by backward input, as far as known
  std::vector<bool> copied{};                  // by forward input: bound to a copy; may be empty

  ~State() {
    if (frame) specialisation->executable.release(std::move(frame));
  }
};

struct Program::Impl {
  Graph graph;
  std::optional<Graph> whole;  // the graph before `rows` took nodes out, if it did
  ProgramOptions options;
  std::shared_ptr<MemoryPool> pool;
  std::vector<Tensor> states;
  std::unordered_map<std::string, size_t> state_of;  // by name: index into states
  std::vector<size_t>
      forward_inputs;  // index into graph.inputs() of each input that the caller feeds
  std::vector<size_t> backward_inputs;
  CountedRowsInputs rows;
  int64_t seed_index = -1;  // index into graph.inputs()
  bool has_backward = false;
  uint64_t run_count = 0;
  Profiler* profiler = nullptr;
  bool wrote_states = false;                         // by the last run
  std::list<std::shared_ptr<Specialisation>> cache;  // most recently used first
  std::shared_ptr<Segment> segments;                 // made if a shape depends on data
  struct BodyProgram {
    Body body;  // keeps the key alive
    std::unique_ptr<Program> program;
  };
  std::map<const Graph*, BodyProgram> bodies;
  int depth = 0;    // nesting level of bodies
  int threads = 0;  // the most that any plan assumes

  // Like the functions of Program, without setting the budget.
  ForwardResult forward(std::span<const Tensor> inputs, const std::vector<bool>& may_change = {});
  DataResult forward_data(std::span<const Datum> inputs);
  void rebind(PendingRun& run, std::span<const Tensor> inputs);
  std::vector<Tensor> backward(std::unique_ptr<PendingRun> run, std::span<const Tensor> inputs);

  Tensor copy_of(const Tensor& input) const;  ///< in the pool's memory

  /// Kernels start the number of threads that they were made for. If the caller cannot have so
  /// many, the plans are made again.
  void replan_if_fewer_threads();

  void index();

  PlanInfo plan(std::span<const Type> input_types);
  MemoryReport memory_report(std::span<const Type> input_types);
  void set_held_bytes(size_t held, size_t offloaded);

  void check_count(std::span<const Tensor> inputs, const std::vector<size_t>& indices) const;

  std::vector<Type> all_types(std::span<const Type> input_types) const;

  /// `inputs`: the caller's forward inputs. The second form also takes the rows that count.
  std::shared_ptr<Specialisation> specialisation(std::span<const Tensor> inputs);
  std::shared_ptr<Specialisation> specialisation(std::span<const Tensor> inputs,
                                                 std::span<const Tensor> row_tensors);

  std::shared_ptr<Specialisation> specialisation_for(std::span<const Type> input_types);

  std::string dump(std::span<const Type> inputs, DumpFormat format);
  /// For a graph that does not run in segments. `types` has the types of all its inputs.
  std::string dump_passes(std::span<const Type> types) const;

  size_t state_index(const std::string& name) const;

  PassOptions pass_options() const;
  RunOptions run_options();

  /// Whether an output is a sequence or an optional, which only segments support.
  bool has_non_tensor_output() const;

  void check_states() const;

  RunContext run_context();

  std::vector<Datum> run_body(const Body& body, std::span<const Datum> inputs, int64_t iteration);

  /// The types of output gradients: those of the outputs.
  std::vector<std::optional<Type>> gradient_types(std::span<const Datum> outputs) const;

  /// Throws the ProviderError for a request that needs a graph that is planned as a whole: segments
  /// are planned only as they run. `what` names the request.
  [[noreturn]] static void throw_not_planned_whole(std::string_view what, std::string remedy);
  /// Throws ProviderError if there is a memory limit.
  void refuse_limit_in_segments() const;

  DataResult forward_in_segments(std::span<const Datum> inputs,
                                 std::span<const Tensor> row_tensors);

  std::vector<Tensor> backward_in_segments(SegmentPosition at, std::span<const Tensor> inputs);
};

}  // namespace steep
