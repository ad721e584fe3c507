// TrainingSession::save_artifact(): compiles the session's graphs for given shapes and writes them.
#include <fmt/format.h>

#include <new>
#include <utility>

#include "ir/seed.h"
#include "ops/defs/with_gradient.h"
#include "passes/pipeline.h"
#include "plan/choose_kernels.h"
#include "program/compile.h"
#include "runtime/budget.h"
#include "runtime/memory.h"
#include "runtime/threads.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/optimizer.h"

namespace steep {
namespace {

/// Passes that artifacts cannot use. The first needs more than one plan, because the rows that
/// count are counted before each run. The second needs kernels of oneDNN (sums of products in
/// place). The third makes an operator that artifacts do not have.
constexpr const char* kLeftOut[] = {"compute_read_rows", "chunk_logits", "part_by_part"};

/// The types of the inputs of `graph`, in order; those of the caller's inputs come from `arrays`.
std::vector<Type> input_types(const Graph& graph, std::span<const Tensor> arrays) {
  std::vector<Type> types;
  size_t next = 0;
  for (const Value input : graph.inputs()) {
    if (is_seed(input)) {
      types.push_back({DType::i64, Shape{2}});
    } else if (graph.input_phase(input) == Phase::backward) {
      types.push_back(input.type());
    } else if (next < arrays.size()) {
      types.push_back({arrays[next].dtype(), to_shape(arrays[next].dims())});
      ++next;
    } else {
      throw DataError(ErrorParts{.what = "An input is missing.", .node = input.name()});
    }
  }
  if (next == arrays.size()) return types;
  throw DataError(ErrorParts{.what = "A batch has too many arrays.",
                             .expected = std::to_string(next),
                             .received = std::to_string(arrays.size())});
}

ArtifactProgram compiled(Purpose purpose, Graph graph, std::span<const Tensor> arrays,
                         const PassOptions& passes) {
  forget_gradients(graph);
  graph.prune();
  std::optional<Plan> plan =
      compile(graph, input_types(graph, arrays), Devices::host_alone(), passes);
  if (!plan) {
    throw ModelError(ErrorParts{.what = "An artifact cannot hold a model with loops, branches or "
                                        "shapes that depend on data.",
                                .remedy = "Train the model with the whole library."});
  }
  ArtifactProgram program{.purpose = purpose, .graph = std::move(*plan->graph)};
  for (const Node n : program.graph.nodes()) {
    if (Ints offsets = view_offsets(n); !offsets.empty())
      program.views.emplace(n.id(), std::move(offsets));
  }
  return program;
}

[[noreturn]] void refuse(const char* what) {
  throw ModelError(ErrorParts{.what = fmt::format("An artifact cannot hold {}.", what),
                              .remedy = "Train without, or with the whole library."});
}

}  // namespace

Artifact TrainingSession::Impl::artifact(std::span<const std::vector<Tensor>> batches) const {
  require_whole();
  require_undivided("save_artifact()");
  require_applied("save_artifact()");
  if (scales_loss(options)) refuse("a loss that is scaled (precision \"fp16\")");
  if (options.ema_decay > 0) refuse("moving averages (ema_decay)");
  if (!options.memory_limit.empty()) refuse("a memory limit (memory_limit)");
  for (const std::string& name : model.moments) {
    const DType dtype = programs.states.at(name).dtype();
    if (dtype != DType::f32 && dtype != DType::f64)
      refuse("moments in fewer bits (state_precision)");
  }
  if (!model.quantised.empty()) refuse("trained weights that the model stores as integers");
  if (!packed.empty()) refuse("quantised weights beside adapters (lora_rank)");
  if (options.offload == "frozen") refuse("weights that stay in another file (offload)");
  if (batches.empty()) {
    throw DataError(ErrorParts{.what = "An artifact needs the shapes of a batch.",
                               .expected = "at least one batch",
                               .received = "none"});
  }
  const ScheduleOptions& schedule = options.schedule;
  Artifact artifact{.lr = base_lr,
                    .schedule = schedule,
                    .steps = steps,
                    .seed = options.seed,
                    .run_count = program->run_count(),
                    .check_finite = options.check_finite};
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const std::optional<OptimizerOptions>& own = options.groups[i].optimizer;
    if (own) artifact.groups[i] = settings_of(*own);
  }
  const auto add_states = [&](const std::vector<std::string>& names, StateRole role) {
    for (const std::string& name : names)
      artifact.states.push_back({name, role, programs.states.at(name)});
  };
  add_states(model.parameters, StateRole::parameter);
  add_states(model.statistics, StateRole::statistic);
  add_states(model.moments, StateRole::moment);
  add_states(model.counts, StateRole::count);
  TrainingOptions plain = options;
  plain.disabled_passes.insert(plain.disabled_passes.end(), std::begin(kLeftOut),
                               std::end(kLeftOut));
  const Devices host = Devices::host_alone();
  const PassOptions passes{{plain.disabled_passes.begin(), plain.disabled_passes.end()},
                           programs.options().precision,
                           &host,
                           nullptr};
  for (const std::vector<Tensor>& batch : batches) {
    std::vector<Tensor> adopted;
    std::span<const Tensor> arrays = adopt(batch, &adopted);
    if (!model.label_added || arrays.size() == inputs.size()) {
      artifact.programs.push_back(
          compiled(Purpose::step, step_graph(model, plain), arrays, passes));
      if (model.label_added) arrays = arrays.first(arrays.size() - 1);
    }
    artifact.programs.push_back(
        compiled(Purpose::prediction, eval_graph(model, plain, false), arrays, passes));
  }
  return artifact;
}

void TrainingSession::save_artifact(const std::filesystem::path& path,
                                    std::span<const std::vector<Tensor>> batches) const try {
  const std::lock_guard lock(impl_->programs.call_lock);
  const EngineCall call;
  const Budget budget(impl_->options.limits);
  settle_threads(0);
  write_artifact(path, impl_->artifact(batches));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace steep
