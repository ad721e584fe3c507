#include "engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <list>

#include "passes/pipeline.h"
#include "passes/specialise.h"
#include "plan/plan.h"
#include "providers/cpu/cpu.h"
#include "runtime/executable.h"
#include "runtime/memory.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The stages, in order. Everything else on this page is bookkeeping.
Plan compile(const Graph& graph, std::span<const Type> types, const Provider& provider,
             const ProgramOptions& options) {
  Graph concrete = specialise(graph, types, provider);
  run_passes(concrete, {options.disabled_passes, options.precision});
  return make_plan(std::move(concrete), provider);
}

size_t constant_bytes(const Plan& plan) {
  size_t bytes = 0;
  for (const Tensor& t : plan.constants) bytes += t.nbytes();
  return bytes;
}

struct Specialisation {
  std::vector<Type> types;  // of the graph's inputs
  std::vector<Dims> dims;   // of the caller's forward inputs
  std::vector<DType> dtypes;
  Executable executable;
  double specialise_ms;

  bool matches(std::span<const Tensor> inputs) const {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].dtype() != dtypes[i] || inputs[i].dims() != dims[i]) return false;
    }
    return true;
  }
};

}  // namespace

struct PendingRun::State {
  std::shared_ptr<Specialisation> specialisation;
  std::unique_ptr<Frame> frame;

  ~State() {
    if (frame) specialisation->executable.release(std::move(frame));
  }
};

PendingRun::PendingRun() : state_(std::make_unique<State>()) {}
PendingRun::~PendingRun() = default;

struct Program::Impl {
  Graph graph;
  ProgramOptions options;
  std::shared_ptr<MemoryPool> pool = MemoryPool::create();
  std::vector<Tensor> states;
  std::vector<size_t>
      forward_inputs;  // index into graph.inputs() of each input that the caller feeds
  std::vector<size_t> backward_inputs;
  int64_t seed_index = -1;  // index into graph.inputs()
  bool has_backward = false;
  uint64_t run_count = 0;
  Profiler* profiler = nullptr;
  std::list<std::shared_ptr<Specialisation>> cache;  // most recently used first

  void index() {
    const auto& inputs = graph.inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].name() == kSeedInput) {
        seed_index = static_cast<int64_t>(i);
      } else if (graph.input_phase(inputs[i]) == Phase::backward) {
        backward_inputs.push_back(i);
      } else {
        forward_inputs.push_back(i);
      }
    }
    for (Node n : graph.nodes()) has_backward = has_backward || n.phase() == Phase::backward;
    for (Value s : graph.states()) {
      states.push_back(s.tensor() != nullptr ? s.tensor()->clone() : Tensor());
    }
  }

  void check_count(std::span<const Tensor> inputs, const std::vector<size_t>& wanted) const {
    for (size_t i = 0; i < std::min(inputs.size(), wanted.size()); ++i) {
      if (!inputs[i].defined()) {
        throw DataError({.what = "An input is missing.", .node = graph.inputs()[wanted[i]].name()});
      }
    }
    if (inputs.size() == wanted.size()) return;
    std::string names;
    for (size_t i : wanted) names += (names.empty() ? "" : ", ") + graph.inputs()[i].name();
    throw DataError({.what = "The number of inputs is wrong.",
                     .expected = fmt::format("{} inputs: {}", wanted.size(), names),
                     .received = fmt::format("{} inputs", inputs.size())});
  }

  std::vector<Type> all_types(std::span<const Type> fed) const {
    std::vector<Type> types(graph.inputs().size());
    for (size_t i = 0; i < fed.size(); ++i) types[forward_inputs[i]] = fed[i];
    for (size_t i : backward_inputs) types[i] = graph.inputs()[i].type();
    if (seed_index >= 0) types[static_cast<size_t>(seed_index)] = {DType::i64, Shape{2}};
    return types;
  }

  std::shared_ptr<Specialisation> specialisation(std::span<const Tensor> inputs) {
    for (auto it = cache.begin(); it != cache.end(); ++it) {
      if (!(*it)->matches(inputs)) continue;
      if (it != cache.begin()) cache.splice(cache.begin(), cache, it);
      return cache.front();
    }
    const auto start = std::chrono::steady_clock::now();
    std::vector<Type> fed;
    std::vector<Dims> dims;
    std::vector<DType> dtypes;
    for (const Tensor& t : inputs) {
      fed.push_back({t.dtype(), to_shape(t.dims())});
      dims.push_back(t.dims());
      dtypes.push_back(t.dtype());
    }
    std::vector<Type> types = all_types(fed);
    Plan plan = compile(graph, types, cpu::provider(), options);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    cache.push_front(std::make_shared<Specialisation>(
        Specialisation{std::move(types), std::move(dims), std::move(dtypes),
                       Executable(std::move(plan), pool), took.count()}));
    if (cache.size() > std::max<size_t>(options.cache_size, 1)) cache.pop_back();
    return cache.front();
  }

  std::shared_ptr<Specialisation> specialisation_for(std::span<const Type> fed) {
    std::vector<Tensor> shells;
    for (const Type& t : fed) shells.push_back(Tensor::wrap(t.dtype, t.dims(), nullptr, nullptr));
    check_count(shells, forward_inputs);
    return specialisation(shells);
  }

  size_t state_index(const std::string& name) const {
    for (size_t i = 0; i < graph.states().size(); ++i) {
      if (graph.states()[i].name() == name) return i;
    }
    throw ModelError(
        {.what = "There is no such state.",
         .node = name,
         .remedy = "Use the name of a trainable parameter or of an optimizer moment."});
  }

  RunOptions run_options() const { return {profiler, options.check_finite}; }
};

Program::Program(Graph graph, ProgramOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->graph = std::move(graph);
  impl_->options = std::move(options);
  impl_->graph.prune();
  impl_->index();
}

Program::~Program() = default;
Program::Program(Program&&) noexcept = default;
Program& Program::operator=(Program&&) noexcept = default;

ForwardResult Program::forward(std::span<const Tensor> inputs) {
  Impl& p = *impl_;
  p.check_count(inputs, p.forward_inputs);
  for (size_t i = 0; i < p.states.size(); ++i) {
    if (!p.states[i].defined()) {
      throw DataError({.what = "A state has no bytes yet.",
                       .node = p.graph.states()[i].name(),
                       .remedy = "Bind it before the first run."});
    }
  }
  std::shared_ptr<Specialisation> s = p.specialisation(inputs);
  Executable& exe = s->executable;
  std::unique_ptr<PendingRun> pending(new PendingRun);
  pending->state_->frame = exe.acquire();
  pending->state_->specialisation = s;
  Frame& frame = *pending->state_->frame;
  for (size_t i = 0; i < inputs.size(); ++i) exe.bind_input(frame, p.forward_inputs[i], inputs[i]);
  for (size_t i = 0; i < p.states.size(); ++i) exe.bind_state(frame, i, p.states[i].data());
  if (p.seed_index >= 0) {
    frame.seed[0] = static_cast<int64_t>(p.options.seed);
    frame.seed[1] = static_cast<int64_t>(p.run_count);
    exe.bind_input(frame, static_cast<size_t>(p.seed_index),
                   Tensor::wrap(DType::i64, {2}, frame.seed, nullptr));
  }
  ForwardResult result;
  result.outputs = exe.run(frame, Phase::forward, p.run_options());
  ++p.run_count;
  if (p.has_backward) result.pending = std::move(pending);
  return result;
}

std::vector<Tensor> Program::backward(std::unique_ptr<PendingRun> run,
                                      std::span<const Tensor> inputs) {
  Impl& p = *impl_;
  p.check_count(inputs, p.backward_inputs);
  if (!run || !run->state_->frame) {
    throw DataError({.what = "Backward was called without a forward run that waits for it.",
                     .remedy = "Run forward first; each forward run serves one backward."});
  }
  Executable& exe = run->state_->specialisation->executable;
  Frame& frame = *run->state_->frame;
  const auto& graph_inputs = exe.plan().graph->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    Value wanted = graph_inputs[p.backward_inputs[i]];
    if (inputs[i].dtype() != wanted.dtype() || inputs[i].dims() != wanted.type().dims()) {
      throw ShapeError(
          {.what = "A gradient has the wrong type.",
           .node = wanted.name(),
           .expected = to_string(wanted.type()),
           .received = to_string(Type{inputs[i].dtype(), to_shape(inputs[i].dims())})});
    }
    exe.bind_input(frame, p.backward_inputs[i], inputs[i]);
  }
  return exe.run(frame, Phase::backward, p.run_options());
}

Tensor Program::state(const std::string& name) const {
  return impl_->states[impl_->state_index(name)];
}

void Program::bind_state(const std::string& name, Tensor tensor) {
  const size_t i = impl_->state_index(name);
  const Type& type = impl_->graph.states()[i].type();
  if (tensor.dtype() != type.dtype || tensor.dims() != type.dims()) {
    throw ShapeError({.what = "A state is bound to a tensor of another type.",
                      .node = name,
                      .expected = to_string(type),
                      .received = to_string(Type{tensor.dtype(), to_shape(tensor.dims())})});
  }
  impl_->states[i] = std::move(tensor);
}

size_t Program::peak_bytes() const {
  size_t constants = 0;
  for (const auto& s : impl_->cache) {
    constants = std::max(constants, constant_bytes(s->executable.plan()));
  }
  return impl_->pool->peak_bytes_in_use() + constants;
}

PlanInfo Program::plan(std::span<const Type> inputs) {
  const auto s = impl_->specialisation_for(inputs);
  const Plan& plan = s->executable.plan();
  PlanInfo info;
  info.arena_bytes = plan.arena_bytes;
  info.kernels = plan.steps.size();
  info.specialise_ms = s->specialise_ms;
  for (const Buffer& b : plan.buffers) {
    if (b.storage == Storage::output) info.output_bytes += b.bytes;
  }
  info.constant_bytes = constant_bytes(plan);
  return info;
}

std::string Program::dump(std::span<const Type> inputs) {
  const Plan& plan = impl_->specialisation_for(inputs)->executable.plan();
  return to_text(*plan.graph) + "\n" + to_text(plan);
}

const Graph& Program::graph() const { return impl_->graph; }
uint64_t Program::run_count() const { return impl_->run_count; }
void Program::set_run_count(uint64_t count) { impl_->run_count = count; }
void Program::set_seed(uint64_t seed) { impl_->options.seed = seed; }
void Program::set_check_finite(bool on) { impl_->options.check_finite = on; }
void Program::set_profiler(Profiler* profiler) { impl_->profiler = profiler; }

Value seed_input(Graph& graph) {
  for (Value v : graph.inputs()) {
    if (v.name() == kSeedInput) return v;
  }
  return graph.add_input(std::string(kSeedInput), {DType::i64, Shape{2}});
}

std::vector<Tensor> evaluate(const Graph& graph, std::span<const Tensor> inputs) {
  return Program(graph).forward(inputs).outputs;
}

}  // namespace steep
