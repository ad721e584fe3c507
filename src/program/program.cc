#include "program/program.h"

#include "ir/compact.h"
#include "model/export/export.h"
#include "ops/defs/with_gradient.h"
#include "program/check_inputs.h"
#include "program/program_impl.h"
#include "runtime/budget.h"
#include "runtime/logs.h"
#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {

PendingRun::PendingRun(std::shared_ptr<MemoryPool> pool, int threads)
    : state_(new State{std::move(pool), threads, {}, {}, {}, {}}) {}
PendingRun::~PendingRun() = default;
bool PendingRun::in_segments() const { return state_->segmented.has_value(); }

Program::Program(Graph graph, ProgramOptions options) : impl_(std::make_unique<Impl>()) {
  check_passes(options.disabled_passes);
  impl_->graph = std::move(graph);
  impl_->options = std::move(options);
  impl_->pool = MemoryPool::create(impl_->options.limits.max_bytes);
  forget_gradients(impl_->graph);
  impl_->graph.prune();
  impl_->whole = impl_->rows.split_off(impl_->graph, impl_->options);
  // They live as long as the program, which plans copies of them.
  impl_->graph = compacted(impl_->graph);
  if (impl_->whole) impl_->whole = compacted(*impl_->whole);
  // For one shape, computed_rows() gives a few different numbers of rows.
  if (impl_->whole) impl_->options.cache_size *= 4;
  impl_->index();
  if (logs(Log::graphs)) log(Log::graphs, to_text(impl_->graph));
}

Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

ForwardResult Program::forward(std::span<const Tensor> inputs,
                               const std::vector<bool>& may_change) {
  const EngineCall call;
  const Budget budget(impl_->options.limits);
  return impl_->forward(inputs, may_change);
}

DataResult Program::forward_data(std::span<const Datum> inputs) {
  const EngineCall call;
  const Budget budget(impl_->options.limits);
  return impl_->forward_data(inputs);
}

void Program::rebind(PendingRun& run, std::span<const Tensor> inputs) {
  impl_->rebind(run, inputs);
}

std::vector<Tensor> Program::backward(std::unique_ptr<PendingRun> run,
                                      std::span<const Tensor> inputs) {
  const EngineCall call;
  const Budget budget(impl_->options.limits);
  return impl_->backward(std::move(run), inputs);
}

void Program::bind_state(const std::string& name, Tensor tensor) {
  const size_t i = impl_->state_index(name);
  require_type("A state is bound to a tensor of another type.", name,
               impl_->graph.states()[i].type(), tensor);
  impl_->states[i] = std::move(tensor);
}

bool Program::wrote_states() const { return impl_->wrote_states; }

size_t Program::peak_bytes() const {
  size_t constants = 0;
  for (const auto& s : impl_->cache) {
    constants = std::max(constants, s->constant_bytes());
  }
  return impl_->pool->peak_bytes_in_use() + constants;
}

PlanInfo Program::plan(std::span<const Type> inputs) {
  const Budget budget(impl_->options.limits);
  return impl_->plan(inputs);
}

void Program::release_memory() {
  for (const auto& s : impl_->cache) s->executable.forget_frames();
  impl_->pool->release_idle();
}

MemoryReport Program::memory_report(std::span<const Type> inputs) {
  const Budget budget(impl_->options.limits);
  return impl_->memory_report(inputs);
}

void Program::set_held_bytes(size_t held, size_t offloaded) {
  impl_->set_held_bytes(held, offloaded);
}

std::string Program::dump(std::span<const Type> inputs, DumpFormat format) {
  const Budget budget(impl_->options.limits);
  return impl_->dump(inputs, format);
}

std::string Program::compiled_model(std::span<const Type> inputs) {
  const Budget budget(impl_->options.limits);
  const auto s = impl_->specialisation_for(inputs);
  return write_compiled(s ? *s->executable.plan().graph : impl_->graph, "compiled");
}

std::vector<Type> Program::output_types(std::span<const Type> inputs) {
  const auto s = impl_->specialisation_for(inputs);
  const Graph& graph = s ? *s->executable.plan().graph : impl_->graph;
  std::vector<Type> types;
  for (const Output& o : graph.outputs()) types.push_back(o.value.type());
  return types;
}

const Graph& Program::graph() const { return impl_->whole ? *impl_->whole : impl_->graph; }
uint64_t Program::run_count() const { return impl_->run_count; }
void Program::set_run_count(uint64_t count) { impl_->run_count = count; }
void Program::set_seed(uint64_t seed) { impl_->options.seed = seed; }
void Program::set_profiler(Profiler* profiler) { impl_->profiler = profiler; }

std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs) {
  return Program(graph).forward(inputs).outputs;
}

}  // namespace steep
