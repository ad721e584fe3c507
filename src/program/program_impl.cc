#include "program/program_impl.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <chrono>

#include "ir/compact.h"
#include "ir/seed.h"
#include "passes/specialise.h"
#include "plan/html.h"
#include "plan/layout.h"
#include "plan/memory_report.h"
#include "program/check_inputs.h"
#include "program/compile.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/heap.h"
#include "runtime/logs.h"
#include "runtime/threads.h"
#include "steep/error.h"

namespace steep {
namespace {

/// A different number for each iteration of a loop (the finaliser of SplitMix64, Steele et al.
/// 2014).
int64_t mix(int64_t count, int64_t iteration) {
  auto x =
      static_cast<uint64_t>(count) + 0x9E3779B97F4A7C15U * (static_cast<uint64_t>(iteration) + 1);
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<int64_t>(x ^ (x >> 31U));
}

}  // namespace

std::vector<Datum> to_data(std::span<const Tensor> tensors) {
  return {tensors.begin(), tensors.end()};
}

void Program::Impl::replan_if_fewer_threads() {
  if (threads > settle_threads(threads)) {
    cache.clear();
    segments.reset();
    bodies.clear();
    threads = 0;
  }
  threads = std::max(threads, omp_get_max_threads());
}

void Program::Impl::index() {
  const auto& inputs = graph.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (std::find(rows.indices().begin(), rows.indices().end(), i) != rows.indices().end())
      continue;
    if (is_seed(inputs[i])) {
      seed_index = static_cast<int64_t>(i);
    } else if (graph.input_phase(inputs[i]) == Phase::backward) {
      backward_inputs.push_back(i);
    } else {
      forward_inputs.push_back(i);
    }
  }
  for (Node n : graph.nodes()) has_backward = has_backward || n.phase() == Phase::backward;
  // also by outputs: a returned gradient may be a backward input, without any node
  for (const Output& o : graph.outputs()) has_backward = has_backward || o.phase == Phase::backward;
  for (Value s : graph.states()) {
    state_of.emplace(s.name(), states.size());
    states.emplace_back();
  }
}

void Program::Impl::check_count(std::span<const Tensor> inputs,
                                const std::vector<size_t>& indices) const {
  for (size_t i = 0; i < std::min(inputs.size(), indices.size()); ++i) {
    if (!inputs[i].defined()) {
      throw DataError({.what = "An input is missing.", .node = graph.inputs()[indices[i]].name()});
    }
  }
  require_count(graph, indices, inputs.size());
}

std::vector<Type> Program::Impl::all_types(std::span<const Type> input_types) const {
  std::vector<Type> types(graph.inputs().size());
  const size_t callers = forward_inputs.size();
  for (size_t i = 0; i < input_types.size(); ++i)
    types[i < callers ? forward_inputs[i] : rows.indices()[i - callers]] = input_types[i];
  for (size_t i : backward_inputs) types[i] = graph.inputs()[i].type();
  if (seed_index >= 0) types[static_cast<size_t>(seed_index)] = {DType::i64, Shape{2}};
  return types;
}

std::shared_ptr<Specialisation> Program::Impl::specialisation(std::span<const Tensor> inputs,
                                                              std::span<const Tensor> row_tensors) {
  if (row_tensors.empty()) return specialisation(inputs);
  std::vector<Tensor> all(inputs.begin(), inputs.end());
  all.insert(all.end(), row_tensors.begin(), row_tensors.end());
  return specialisation(all);
}

std::shared_ptr<Specialisation> Program::Impl::specialisation(std::span<const Tensor> inputs) {
  for (auto it = cache.begin(); it != cache.end(); ++it) {
    if (!(*it)->matches(inputs)) continue;
    if (it != cache.begin()) cache.splice(cache.begin(), cache, it);
    return cache.front();
  }
  if (segments) return nullptr;
  const auto start = std::chrono::steady_clock::now();
  if (cache.empty()) trim_heap();  // what the import took
  std::vector<Type> input_types;
  std::vector<Dims> dims;
  std::vector<DType> dtypes;
  for (const Tensor& t : inputs) {
    input_types.push_back({t.dtype(), to_shape(t.dims())});
    dims.push_back(t.dims());
    dtypes.push_back(t.dtype());
  }
  std::vector<Type> types = all_types(input_types);
  if (!cache.empty() && logs(Log::recompiles)) {
    std::string text = fmt::format("planned again ({} before), for", counted(cache.size(), "plan"));
    for (const Type& type : input_types) text += " " + to_string(type);
    log(Log::recompiles, text);
  }
  std::vector<CompileStage> stages;
  PassOptions passes = pass_options();
  passes.stages = &stages;
  std::optional<Plan> plan = compile(graph, types, options.devices, passes, options.memory_limit);
  if (!plan) {
    refuse_limit_in_segments();
    segments = Segment::whole(graph);
    return nullptr;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  cache.push_front(std::make_shared<Specialisation>(
      Specialisation{std::move(types), std::move(dims), std::move(dtypes),
                     Executable(std::move(*plan), pool), took.count(), std::move(stages)}));
  if (cache.size() > std::max<size_t>(options.cache_size, 1)) cache.pop_back();
  trim_heap();
  return cache.front();
}

std::shared_ptr<Specialisation> Program::Impl::specialisation_for(
    std::span<const Type> input_types) {
  const EngineCall call;
  replan_if_fewer_threads();
  std::vector<Tensor> shells;
  for (const Type& t : input_types)
    shells.push_back(Tensor::wrap(t.dtype, t.dims(), nullptr, nullptr));
  check_count(shells, forward_inputs);
  return specialisation(shells, rows.expect(input_types));
}

PlanInfo Program::Impl::plan(std::span<const Type> input_types) {
  const auto s = specialisation_for(input_types);
  if (!s) return {};
  const Plan& plan = s->executable.plan();
  PlanInfo info{.arena_bytes = plan.arena_bytes,
                .constant_bytes = s->constant_bytes(),
                .run_bytes = options.memory_limit.counted(run_bytes(plan)),
                .memory_limit = options.memory_limit.bytes,
                .kernels = plan.steps.size(),
                .specialise_ms = s->specialise_ms,
                .stages = s->stages};
  for (const Buffer& b : plan.buffers) {
    if (b.storage == Storage::output) info.output_bytes += b.bytes;
  }
  return info;
}

MemoryReport Program::Impl::memory_report(std::span<const Type> input_types) {
  const auto s = specialisation_for(input_types);
  if (!s) {
    throw_not_planned_whole("A memory report needs a graph that is planned as a whole.",
                            "Run the model, and read the peak of its memory.");
  }
  Graph concrete = specialise_known(graph, s->types, options.devices).graph;
  run_passes(concrete, pass_options());
  return steep::memory_report(compacted(concrete), options.devices, options.memory_limit,
                              s->executable.plan().found);
}

void Program::Impl::set_held_bytes(size_t held, size_t offloaded) {
  MemoryLimit& limit = options.memory_limit;
  limit.held = held;
  limit.offloaded = offloaded;
  if (limit.bytes == 0) return;
  std::erase_if(cache, [&](const std::shared_ptr<Specialisation>& s) {
    return !limit.allows(run_bytes(s->executable.plan()));
  });
}

std::string Program::Impl::dump(std::span<const Type> inputs, DumpFormat format) {
  const auto s = specialisation_for(inputs);
  const std::string_view note =
      "This graph runs in segments, which are planned as it runs: see the plans of the runs so "
      "far.";
  if (!s && format == DumpFormat::html) return to_html(segments->plans(), note);
  if (!s && format == DumpFormat::passes) return fmt::format("# {}\n{}", note, to_text(graph));
  if (!s) return to_text(graph) + "\n" + segments->text();
  const Plan& plan = s->executable.plan();
  if (format == DumpFormat::html) return to_html(plan);
  if (format == DumpFormat::passes) return dump_passes(s->types);
  return to_text(*plan.graph) + "\n" + to_text(plan);
}

std::string Program::Impl::dump_passes(std::span<const Type> types) const {
  const EngineCall call;
  Graph concrete = specialise_known(graph, types, options.devices).graph;
  std::string last = to_text(concrete);
  std::string text = "# specialised\n" + last;
  PassOptions settings = pass_options();
  settings.after = [&](std::string_view pass, const Graph& now) {
    std::string after = to_text(now);
    text += fmt::format("# {}{}\n", pass, after == last ? ": changed nothing" : "\n" + after);
    last = std::move(after);
  };
  run_passes(concrete, settings);
  for (const std::string& name : options.disabled_passes) text += "# " + name + ": switched off\n";
  return text;
}

size_t Program::Impl::state_index(const std::string& name) const {
  if (auto it = state_of.find(name); it != state_of.end()) return it->second;
  throw ModelError({.what = "There is no such state.",
                    .node = name,
                    .remedy = "Use the name of a trainable parameter or of an optimizer moment."});
}

PassOptions Program::Impl::pass_options() const {
  return {options.disabled_passes, options.precision, &options.devices, profiler};
}

RunOptions Program::Impl::run_options() {
  wrote_states = false;
  return {profiler, options.check_finite, &wrote_states};
}

bool Program::Impl::has_non_tensor_output() const {
  return std::any_of(graph.outputs().begin(), graph.outputs().end(),
                     [](const Output& o) { return o.value.type().kind != Kind::tensor; });
}

void Program::Impl::check_states() const {
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].defined()) continue;
    throw DataError({.what = "A state has no bytes yet.",
                     .node = graph.states()[i].name(),
                     .remedy = "Bind it before the first run."});
  }
}

RunContext Program::Impl::run_context() {
  RunContext m{.devices = options.devices,
               .pool = pool,
               .passes = pass_options(),
               .cache_size = options.cache_size,
               .limits = options.limits,
               .run = run_options()};
  for (size_t i = 0; i < states.size(); ++i) m.states[graph.states()[i].name()] = states[i];
  m.run_body = [this](const Body& body, std::span<const Datum> inputs, int64_t iteration) {
    return run_body(body, inputs, iteration);
  };
  return m;
}

std::vector<Datum> Program::Impl::run_body(const Body& body, std::span<const Datum> inputs,
                                           int64_t iteration) {
  BodyProgram& b = bodies[body.get()];
  if (!b.program) {
    if (depth >= options.limits.max_depth) {
      throw DataError({.what = "Loops and branches are nested too deep.",
                       .expected = fmt::format("at most {}", options.limits.max_depth),
                       .received = "more",
                       .remedy = "Export the model with less nesting, or raise "
                                 "Limits::max_depth."});
    }
    b.body = body;
    b.program = std::make_unique<Program>(*body, options);
    b.program->impl_->pool = pool;
    b.program->impl_->depth = depth + 1;
  }
  Impl& inner = *b.program->impl_;
  inner.options.check_finite = options.check_finite;
  inner.profiler = profiler;
  if (inner.seed_index < 0) return b.program->forward_data(inputs).outputs;
  std::vector<Datum> arguments(inputs.begin(), inputs.end());
  const Tensor seed = arguments[static_cast<size_t>(inner.seed_index)].tensor();
  arguments.erase(arguments.begin() + inner.seed_index);
  inner.options.seed = static_cast<uint64_t>(seed.data<int64_t>()[0]);
  inner.run_count = static_cast<uint64_t>(mix(seed.data<int64_t>()[1], iteration));
  return b.program->forward_data(arguments).outputs;
}

std::vector<std::optional<Type>> Program::Impl::gradient_types(
    std::span<const Datum> outputs) const {
  std::vector<std::optional<Type>> types(backward_inputs.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const Value like = graph.gradient_of(graph.inputs()[backward_inputs[i]]);
    size_t next = 0;
    for (const Output& o : graph.outputs()) {
      if (o.phase != Phase::forward) continue;
      const Datum& d = outputs[next++];
      if (like && o.value == like && d.is_tensor())
        types[i] = Type{d.tensor().dtype(), to_shape(d.tensor().dims())};
    }
  }
  return types;
}

void Program::Impl::throw_not_planned_whole(std::string_view what, std::string remedy) {
  throw ProviderError({.what = fmt::format("{} In this one a shape depends on data, or it has "
                                           "loops, branches or sequences.",
                                           what),
                       .remedy = std::move(remedy)});
}

void Program::Impl::refuse_limit_in_segments() const {
  if (options.memory_limit.bytes == 0) return;
  throw_not_planned_whole("A memory limit needs a graph that is planned as a whole.",
                          "Leave the memory limit out, or use a smaller batch.");
}

DataResult Program::Impl::forward_in_segments(std::span<const Datum> inputs,
                                              std::span<const Tensor> row_tensors) {
  refuse_limit_in_segments();
  if (!segments) segments = Segment::whole(graph);
  if (segments->size() > 4 * std::max<size_t>(options.cache_size, 1)) segments->forget();
  SegmentPosition at{segments, std::vector<Datum>(backward_inputs.size())};
  size_t next = 0, next_rows = 0;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const Value v = graph.inputs()[i];
    if (static_cast<int64_t>(i) == seed_index) {
      at.inputs.emplace_back(
          Tensor::from({static_cast<int64_t>(options.seed), static_cast<int64_t>(run_count)}, {2}));
    } else if (next_rows < row_tensors.size() && rows.indices()[next_rows] == i) {
      at.inputs.emplace_back(row_tensors[next_rows++]);
    } else if (graph.input_phase(v) == Phase::forward) {
      require_kind(v, inputs[next], depth > 0);
      at.inputs.push_back(inputs[next++]);
    }
  }
  DataResult result;
  result.outputs = Segment::run(at, run_context());
  if (depth == 0) keep_apart(result.outputs, inputs);
  ++run_count;
  if (has_backward) {
    result.pending.reset(new PendingRun(pool, threads));
    result.pending->state_->gradients = gradient_types(result.outputs);
    result.pending->state_->segmented = std::move(at);
  }
  return result;
}

std::vector<Tensor> Program::Impl::backward_in_segments(SegmentPosition at,
                                                        std::span<const Tensor> inputs) {
  const std::vector<Datum> data = to_data(inputs);
  std::copy(data.begin(), data.end(), at.inputs.begin());
  std::vector<Datum> results = Segment::run(at, run_context());
  keep_apart(results, data);
  return to_tensors(results);
}

Tensor Program::Impl::copy_of(const Tensor& input) const {
  const std::shared_ptr<void> bytes = pool->allocate(input.nbytes());
  if (input.nbytes() != 0) std::memcpy(bytes.get(), input.data(), input.nbytes());
  return Tensor::wrap(input.dtype(), input.dims(), bytes.get(), bytes);
}

namespace {

/// Converts the result of a run in segments to tensors. Backward may read any value. `copy` copies
/// the outputs that the caller may change.
template <typename Copy>
ForwardResult forward_result(const Graph& graph, DataResult result, bool has_backward,
                             Copy&& copy) {
  std::vector<Tensor> outputs = to_tensors(result.outputs);
  std::vector<bool> read(outputs.size(), has_backward);
  size_t i = 0;
  for (const Output& o : graph.outputs()) {
    if (o.phase != Phase::forward) continue;
    if (has_backward && o.may_change) {
      outputs[i] = copy(outputs[i]);
      read[i] = false;
    }
    ++i;
  }
  return {std::move(outputs), std::move(result.pending), std::move(read)};
}

}  // namespace

ForwardResult Program::Impl::forward(std::span<const Tensor> inputs,
                                     const std::vector<bool>& may_change) {
  replan_if_fewer_threads();
  check_count(inputs, forward_inputs);
  check_states();
  const std::vector<Tensor> row_tensors = rows.compute(inputs);
  std::shared_ptr<Specialisation> s = specialisation(inputs, row_tensors);
  if (!s) {
    std::vector<Tensor> arrays(inputs.begin(), inputs.end());
    for (size_t i = 0; has_backward && i < may_change.size(); ++i) {
      if (may_change[i]) arrays[i] = copy_of(arrays[i]);  // a segment may read any input
    }
    return forward_result(graph, forward_in_segments(to_data(arrays), row_tensors), has_backward,
                          [&](const Tensor& t) { return copy_of(t); });
  }
  Executable& exe = s->executable;
  std::unique_ptr<PendingRun> run(new PendingRun(pool, threads));
  run->state_->frame = exe.acquire();
  run->state_->specialisation = s;
  Frame& frame = *run->state_->frame;
  run->state_->copied = may_change;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool copied = i < may_change.size() && may_change[i] && has_backward &&
                        exe.backward_reads_input(forward_inputs[i]);
    if (i < may_change.size()) run->state_->copied[i] = copied;
    exe.bind_input(frame, forward_inputs[i], copied ? copy_of(inputs[i]) : inputs[i]);
  }
  for (size_t i = 0; i < row_tensors.size(); ++i)
    exe.bind_input(frame, rows.indices()[i], row_tensors[i]);
  for (size_t i = 0; i < states.size(); ++i) exe.bind_state(frame, i, states[i].data());
  if (seed_index >= 0) {
    frame.seed[0] = static_cast<int64_t>(options.seed);
    frame.seed[1] = static_cast<int64_t>(run_count);
    exe.bind_input(frame, static_cast<size_t>(seed_index),
                   Tensor::wrap(DType::i64, {2}, frame.seed, nullptr));
  }
  ForwardResult result;
  result.read_by_backward = exe.read_by_backward();
  result.outputs = exe.run(frame, Phase::forward, run_options());
  ++run_count;  // last, so that a failed step draws the same numbers again
  if (has_backward) result.pending = std::move(run);
  return result;
}

DataResult Program::Impl::forward_data(std::span<const Datum> inputs) {
  replan_if_fewer_threads();
  const bool tensors =
      std::all_of(inputs.begin(), inputs.end(), [](const Datum& d) { return d.is_tensor(); });
  if (tensors && inputs.size() == forward_inputs.size() && !has_non_tensor_output()) {
    const std::vector<Tensor> arrays = to_tensors(inputs);
    if (!rows.empty() || specialisation(arrays)) {
      ForwardResult result = forward(arrays);
      return {to_data(result.outputs), std::move(result.pending)};
    }
  }
  require_count(graph, forward_inputs, inputs.size());
  check_states();
  std::vector<Tensor> row_tensors;
  if (!rows.empty()) {
    std::vector<Tensor> arrays;
    for (const Datum& d : inputs) arrays.push_back(d.is_tensor() ? d.tensor() : Tensor());
    row_tensors = rows.compute(arrays);
  }
  return forward_in_segments(inputs, row_tensors);
}

void Program::Impl::rebind(PendingRun& run, std::span<const Tensor> inputs) {
  PendingRun::State& state = *run.state_;
  check_count(inputs, forward_inputs);
  if (state.segmented) {
    throw ProviderError({.what = "Inputs have moved between forward and backward of a graph that "
                                 "runs in segments.",
                         .remedy = "Keep them in place, or run the module in PyTorch."});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (i < state.copied.size() && state.copied[i]) continue;
    const size_t index = forward_inputs[i];
    const Tensor& bound = state.frame->inputs[index];
    require_type("An input of backward differs from the input of forward.",
                 graph.inputs()[index].name(), {bound.dtype(), to_shape(bound.dims())}, inputs[i]);
    state.specialisation->executable.bind_input(*state.frame, index, inputs[i]);
  }
}

std::vector<Tensor> Program::Impl::backward(std::unique_ptr<PendingRun> run,
                                            std::span<const Tensor> inputs) {
  check_count(inputs, backward_inputs);
  if (!run || (!run->state_->frame && !run->state_->segmented)) {
    throw DataError({.what = "Backward was called without a forward run that waits for it.",
                     .remedy = "Run forward first; each forward run serves one backward."});
  }
  PendingRun::State& state = *run->state_;
  if (state.pool != pool) {
    throw DataError({.what = "Backward was called with a forward run of another program.",
                     .remedy = "Call backward of the program that ran forward."});
  }
  if (state.threads > settle_threads(state.threads)) {
    throw ProviderError(
        {.what = "The threads of the forward run no longer exist (was the process forked?).",
         .remedy = "Run forward again; start processes by \"spawn\"."});
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value input = graph.inputs()[backward_inputs[i]];
    const std::optional<Type> type =
        state.segmented
            ? state.gradients[i]
            : state.specialisation->executable.plan().graph->inputs()[backward_inputs[i]].type();
    if (type) require_type("A gradient has the wrong type.", input.name(), *type, inputs[i]);
  }
  if (state.segmented) return backward_in_segments(std::move(*state.segmented), inputs);
  Executable& exe = state.specialisation->executable;
  Frame& frame = *state.frame;
  for (size_t i = 0; i < inputs.size(); ++i) exe.bind_input(frame, backward_inputs[i], inputs[i]);
  return exe.run(frame, Phase::backward, run_options());
}

}  // namespace steep
