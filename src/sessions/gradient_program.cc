#include "sessions/gradient_program.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "autodiff/gradient.h"
#include "ir/seed.h"
#include "ops/build.h"
#include "ops/op_def.h"
#include "passes/pipeline.h"
#include "steep/error.h"

namespace steep {
namespace {

uint64_t next_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

/// A hash of a tensor, which usually differs if the content differs. It reads all bytes of small
/// arrays, and evenly spaced words of large ones, so that its time is negligible beside a run.
uint64_t digest(const Tensor& t) {
  constexpr size_t kWord = sizeof(uint64_t), kMost = 128;
  const size_t words = t.nbytes() / kWord, samples = std::min(words, kMost);
  const auto* bytes = static_cast<const std::byte*>(t.data());
  uint64_t sum = 0;
  const auto add = [&](size_t at, size_t count) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, count);
    sum = (sum ^ word) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 32;
  };
  for (size_t i = 0; i < samples; ++i) add(words * i / samples * kWord, kWord);
  if (const size_t rest = t.nbytes() % kWord; rest != 0) add(words * kWord, rest);
  return sum;
}

std::vector<uint64_t> digests_of(std::span<const Tensor> tensors) {
  std::vector<uint64_t> digests;
  for (const Tensor& t : tensors) digests.push_back(digest(t));
  return digests;
}

}  // namespace

bool shows_writes(const GradientRun& run) {
  return !run.digests.empty() && run.digests != digests_of(run.inputs);
}

GradientProgram::GradientProgram(Graph graph, GradientProgramOptions options)
    : id_(next_id()),
      graph_(std::move(graph)),
      input_gradients_(std::move(options.input_gradients)),
      inputs_stay_(options.inputs_stay),
      programs_({.disabled_passes = std::move(options.disabled_passes),
                 .precision = options.precision,
                 .threads = options.threads,
                 .memory_limit = options.memory_limit,
                 .limits = options.limits,
                 .devices = std::move(options.devices)}) {
  check_passes(programs_.options().disabled_passes);
  run_early_pass(graph_, "recognise", programs_.options().disabled_passes);
  find_differentiable();
  for (size_t i = 0; i < differentiable_.size(); ++i) {
    const auto& those = options.results_may_change;
    if (!differentiable_[i] || (i < those.size() && those[i])) graph_.let_output_change(i);
  }
  for (Value v : graph_.inputs()) random_ = random_ || is_seed(v);
  expected_ = first_guess();
  for (const std::string& name : input_names()) {
    const auto& those = options.may_change;
    may_change_.push_back(std::find(those.begin(), those.end(), name) != those.end());
  }
}

std::vector<std::string> GradientProgram::input_names() const {
  std::vector<std::string> names;
  for (Value v : graph_.inputs()) {
    if (!is_seed(v)) names.push_back(v.name());
  }
  return names;
}

ForwardResult GradientProgram::forward(GradientRun& run, bool gradients) {
  const std::lock_guard lock(programs_.call_lock);
  run.program = id_;
  run.pattern = pattern(gradients);
  run.copies.clear();
  run.digests.clear();
  if (gradients && foreseen_ && !inputs_stay_) run.digests = digests_of(run.inputs);
  // copies, because forward may have to run again
  if (gradients && !foreseen_ && !inputs_stay_) keep_copies(run);
  return start(run, run.inputs);
}

std::vector<Tensor> GradientProgram::backward(GradientRun& run, std::span<const Tensor> gradients) {
  if (run.program != id_) {
    throw DataError({.what = "Backward was called with a forward run of another program.",
                     .remedy = "Call backward of the program that ran forward."});
  }
  GradientPattern pattern;
  std::vector<Tensor> seeds;
  for (const Tensor& gradient : gradients) {
    pattern.push_back(gradient.defined());
    if (gradient.defined()) seeds.push_back(gradient);
  }
  const std::lock_guard lock(programs_.call_lock);
  expected_ = pattern;
  foreseen_ = run.pending && run.pattern == pattern;
  Program& program = compile(pattern);
  const bool has_copies = inputs_stay_ || !run.copies.empty();
  const auto changed = [&] { return run.changed || shows_writes(run); };
  if (run.is_kept && foreseen_ && !has_copies && !changed()) keep_copies(run);
  if (!foreseen_) {
    if (!has_copies && changed()) {
      throw DataError({.what = "Values that forward read were changed since, and this backward "
                               "needs them: gradients come from other results than in the last "
                               "call, or backward runs a second time.",
                       .remedy = "Change them after backward, or pass a clone()."});
    }
    run.pending.reset();
    run.pattern = pattern;
    start(run, run.copies.empty() ? run.inputs : run.copies);
    // afterwards, as in a first run, tensors that may not change are read in place
    run.moved = !run.copies.empty() && !run.pending->in_segments();
  }
  if (run.moved) program.rebind(*run.pending, run.inputs);
  run.moved = run.is_kept = false;
  std::vector<Tensor> tensors = program.backward(std::move(run.pending), seeds);
  std::vector<Tensor> results;
  size_t next = 0;
  for (bool flow : flows_.at(pattern))
    results.push_back(flow ? std::move(tensors[next++]) : Tensor());
  return results;
}

MemoryReport GradientProgram::memory_report(std::span<const Type> inputs, bool gradients) {
  const std::lock_guard lock(programs_.call_lock);
  return compile(pattern(gradients)).memory_report(inputs);
}

PlanInfo GradientProgram::plan(std::span<const Type> inputs, bool gradients) {
  const std::lock_guard lock(programs_.call_lock);
  return compile(pattern(gradients)).plan(inputs);
}

std::string GradientProgram::dump(std::span<const Type> inputs, bool gradients, DumpFormat format) {
  const std::lock_guard lock(programs_.call_lock);
  return compile(pattern(gradients)).dump(inputs, format);
}

std::string GradientProgram::compiled_model(std::span<const Type> inputs, bool gradients) {
  const std::lock_guard lock(programs_.call_lock);
  return compile(pattern(gradients)).compiled_model(inputs);
}

void GradientProgram::start_profile() {
  const std::lock_guard lock(programs_.call_lock);
  programs_.start_profile();
}

std::string GradientProgram::end_profile() {
  const std::lock_guard lock(programs_.call_lock);
  return programs_.end_profile();
}

void GradientProgram::write_profile(const std::filesystem::path& path) {
  const std::lock_guard lock(programs_.call_lock);
  programs_.write_profile(path);
}

size_t GradientProgram::peak_bytes() {
  const std::lock_guard lock(programs_.call_lock);
  return programs_.peak_bytes();
}

size_t GradientProgram::program_count() {
  const std::lock_guard lock(programs_.call_lock);
  return programs_.size();
}

/// A forward sweep from all values whose gradients are wanted, through differentiable operators.
void GradientProgram::find_differentiable() {
  std::vector<bool> reached(graph_.value_count(), false);
  for (const std::string& name : input_gradients_) {
    if (Value v = graph_.find(name)) reached[v.id()] = true;
  }
  for (Node n : graph_.nodes()) {
    const OpDef* def = find_op(n.op());
    if (def != nullptr && def->stops_gradient) continue;
    bool any = false;
    for (int i = 0; i < n.input_count(); ++i) {
      any = any || (n.input(i) && reached[n.input(i).id()]);
    }
    for (int i = 0; any && i < n.output_count(); ++i) {
      if (Value y = n.output(i); y && is_float(y.dtype())) reached[y.id()] = true;
    }
  }
  for (const Output& o : graph_.outputs()) differentiable_.push_back(reached[o.value.id()]);
}

/// A model with a single scalar output probably returns its loss. Otherwise a loss may be computed
/// from any of its outputs.
GradientPattern GradientProgram::first_guess() const {
  GradientPattern scalars;
  for (size_t i = 0; i < differentiable_.size(); ++i) {
    const auto& shape = graph_.outputs()[i].value.type().shape;
    scalars.push_back(differentiable_[i] && shape.has_value() && shape->empty());
  }
  return std::count(scalars.begin(), scalars.end(), true) == 1 ? scalars : differentiable_;
}

GradientPattern GradientProgram::pattern(bool gradients) const {
  return gradients ? expected_ : GradientPattern(expected_.size(), false);
}

Program& GradientProgram::compile(const GradientPattern& pattern) {
  return programs_.get(pattern, [&] { return with_gradients(pattern); });
}

Graph GradientProgram::with_gradients(const GradientPattern& pattern) {
  Graph g = graph_;
  if (std::count(pattern.begin(), pattern.end(), true) != 0)
    run_early_pass(g, "compute_read_rows", programs_.options().disabled_passes);
  GradientPattern flows;
  std::vector<Value> wrt;
  for (const std::string& name : input_gradients_) {
    Value v = g.find(name);
    flows.push_back(static_cast<bool>(v));
    if (v) wrt.push_back(v);
  }
  std::vector<Value> outputs;
  std::vector<Value> seeds;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (!pattern[i]) continue;
    const Output output = g.outputs()[i];
    outputs.push_back(output.value);
    seeds.push_back(g.add_gradient_input("gradient of " + output.name, output.value));
  }
  if (!outputs.empty()) {
    const std::vector<Value> gradients = add_gradients(g, outputs, seeds, wrt);
    size_t next = 0;
    for (auto&& flow : flows) {
      if (!flow) continue;
      Value gradient = gradients[next];
      flow = static_cast<bool>(gradient);
      if (gradient) g.add_output("gradient of " + wrt[next].name(), gradient, Phase::backward);
      ++next;
    }
  }
  flows_[pattern] = std::move(flows);
  return g;
}

/// Copies the inputs, for another forward of `run` and for a backward that reads inputs that may
/// change.
void GradientProgram::keep_copies(GradientRun& run) const {
  for (const Tensor& input : run.inputs) run.copies.push_back(input.clone());
  for (size_t i = 0; i < may_change_.size(); ++i) {
    if (may_change_[i]) run.inputs[i] = run.copies[i];
  }
}

/// Runs forward. The pending run goes to `run`.
ForwardResult GradientProgram::start(GradientRun& run, std::span<const Tensor> inputs) {
  Program& program = compile(run.pattern);
  program.set_seed(run.seed);
  program.set_run_count(0);  // run.seed differs for each run
  const std::vector<bool> none;
  ForwardResult result = program.forward(inputs, run.copies.empty() ? may_change_ : none);
  run.pending = std::move(result.pending);
  return result;
}

}  // namespace steep
