// The public members of TrainingSession, which forward to training_impl.cc.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "checkpoint/checkpoint.h"
#include "model/import/import.h"
#include "model/read/model_file.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/memory.h"
#include "sessions/step_plan.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/name_suggestions.h"
#include "train/optimizer.h"
#include "train/schedule.h"

namespace steep {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

std::vector<Type> types_of(std::span<const Tensor> inputs) {
  std::vector<Type> types;
  for (const Tensor& t : inputs) types.push_back({t.dtype(), to_shape(t.dims())});
  return types;
}

std::string in_brackets(const std::string& text) { return text.empty() ? "" : " (" + text + ")"; }

std::map<std::string, Tensor> clones(std::map<std::string, Tensor> tensors) {
  for (auto& [name, tensor] : tensors) tensor = tensor.clone();
  return tensors;
}

size_t bytes_of(const std::map<std::string, Tensor>& tensors) {
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) bytes += tensor.nbytes();
  return bytes;
}

/// Throws if a checkpoint lacks tensors, has unknown ones, or has tensors of another type.
void require_same_states(const std::map<std::string, Tensor>& values,
                         const std::map<std::string, Tensor>& own,
                         const std::filesystem::path& file) {
  auto refuse = [&](const std::string& name, const std::string& expected,
                    const std::string& received) {
    throw CheckpointError(
        ErrorParts{.what = fmt::format("{} belongs to another model or optimizer.", file.string()),
                   .node = name,
                   .expected = expected,
                   .received = received,
                   .remedy = "Load it with the model and options it was saved with; nothing was "
                             "changed."});
  };
  auto text = [](const Tensor& t) {
    return fmt::format("{}{}", name_of(t.dtype()), to_string(t.dims()));
  };
  for (const auto& [name, tensor] : own) {
    const auto found = values.find(name);
    if (found == values.end()) refuse(name, text(tensor), "no value of this name");
    if (found->second.dtype() != tensor.dtype() || found->second.dims() != tensor.dims()) {
      refuse(name, text(tensor), text(found->second));
    }
  }
  for (const auto& [name, tensor] : values) {
    if (own.find(name) == own.end()) refuse(name, "no value of this name", text(tensor));
  }
}

}  // namespace

std::string StepPlan::text() const {
  const bool kib = peak_bytes < (size_t{1} << 20);
  const double unit = kib ? 1024 : 1 << 20;
  const int digits = static_cast<double>(peak_bytes) < 10 * unit ? 1 : 0;
  auto number = [=](size_t bytes) {
    return fmt::format("{:.{}f}", static_cast<double>(bytes) / unit, digits);
  };
  std::vector<std::string> parts;
  auto add = [&](const char* name, size_t bytes) {
    if (number(bytes) != number(0)) parts.push_back(fmt::format("{} {}", name, number(bytes)));
  };
  add("parameters", parameter_bytes);
  add("moments", optimizer_bytes);
  add("constants", constant_bytes);
  add("outputs", output_bytes);
  add("arena", arena_bytes);
  std::string text =
      fmt::format("{} {} ({})", number(peak_bytes), kib ? "KiB" : "MiB", fmt::join(parts, ", "));
  if (offloaded_bytes > 0)
    text += fmt::format("; {} of these on disk", bytes_text(offloaded_bytes));
  if (memory_limit == 0) return text;
  return text + fmt::format("; with inputs {}, within the memory limit of {}",
                            bytes_text(run_bytes), bytes_text(memory_limit));
}

TrainingSession::TrainingSession(const std::filesystem::path& model, TrainingOptions options) try
    : impl_(std::make_unique<Impl>(read_file(model, options.limits.max_bytes), folder_of(model),
                                   std::move(options))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

TrainingSession::TrainingSession(std::span<const std::byte> model, TrainingOptions options,
                                 const std::filesystem::path& folder) try
    : impl_(std::make_unique<Impl>(
          std::string(reinterpret_cast<const char*>(model.data()), model.size()), folder,
          std::move(options))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

TrainingSession::TrainingSession(std::span<const std::byte> model, TrainingOptions options,
                                 std::map<std::string, Tensor> weights) try
    : impl_(std::make_unique<Impl>(
          std::string(reinterpret_cast<const char*>(model.data()), model.size()),
          std::filesystem::path(), std::move(options), std::move(weights))) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

TrainingSession::~TrainingSession() = default;
TrainingSession::TrainingSession(TrainingSession&&) noexcept = default;
TrainingSession& TrainingSession::operator=(TrainingSession&&) noexcept = default;

StepResult TrainingSession::step(std::span<const Tensor> inputs) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->step(inputs);
}
StepResult TrainingSession::step(const Inputs& inputs) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->step(impl_->in_order(inputs, false));
}
StepResult TrainingSession::accumulate(std::span<const Tensor> inputs) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->accumulate(inputs);
}
StepResult TrainingSession::accumulate(const Inputs& inputs) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->accumulate(impl_->in_order(inputs, false));
}
StepResult TrainingSession::apply_gradients() {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->apply_gradients();
}
int64_t TrainingSession::accumulated() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->accumulated.parts;
}
void TrainingSession::drop_gradients() {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->accumulated = {};
}
AccumulatedGradients TrainingSession::accumulated_gradients() {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->accumulated_gradients();
}
void TrainingSession::set_accumulated(double weight, double loss) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->set_accumulated(weight, loss);
}
EvalResult TrainingSession::eval(std::span<const Tensor> inputs) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->eval(inputs);
}
EvalResult TrainingSession::eval(const Inputs& inputs) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->eval(impl_->in_order(inputs, true));
}
std::map<std::string, Tensor> TrainingSession::gradients(std::span<const Tensor> inputs,
                                                         double* loss) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->gradients(inputs, loss);
}
std::map<std::string, Tensor> TrainingSession::gradients(const Inputs& inputs, double* loss) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->gradients(impl_->in_order(inputs, false), loss);
}

const std::vector<TensorInfo>& TrainingSession::input_info() const { return impl_->inputs; }
std::vector<TensorInfo> TrainingSession::output_info() const { return impl_->outputs; }
std::vector<std::string> TrainingSession::parameter_names() const {
  return impl_->model.parameters;
}
std::vector<std::string> TrainingSession::adapted_names() const {
  std::vector<std::string> names;
  for (const Adapter& adapter : impl_->adapters) names.push_back(adapter.weight);
  return names;
}
std::vector<LeftOut> TrainingSession::left_out() const { return impl_->model.left_out; }
std::string TrainingSession::batch_note() const { return impl_->batch_note; }
std::vector<std::string> TrainingSession::statistic_names() const {
  return impl_->model.statistics;
}
std::vector<std::string> TrainingSession::warnings() const { return impl_->model.warnings; }
std::vector<std::string> TrainingSession::optimizer_state_names() const {
  std::vector<std::string> names = impl_->model.moments;
  names.insert(names.end(), impl_->model.counts.begin(), impl_->model.counts.end());
  return names;
}
std::map<std::string, Tensor> TrainingSession::weights() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->require_whole();
  return clones(impl_->shared(impl_->model.parameters));
}
std::map<std::string, Tensor> TrainingSession::optimizer_state() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->require_whole();
  std::map<std::string, Tensor> states;
  for (const std::string& name : impl_->optimizer_states()) states[name] = impl_->wide_state(name);
  return states;
}
Tensor TrainingSession::state(const std::string& name) const {
  const std::lock_guard lock(impl_->programs.call_lock);  // accumulate() adds states
  const auto found = impl_->programs.states.find(name);
  impl_->require_here(name);
  // Frozen weights beside adapters are states, too, as packed numbers or as places in a file.
  const bool frozen = impl_->packed.count(name) + impl_->places.count(name) != 0;
  if (frozen || found == impl_->programs.states.end()) {
    std::vector<std::string> names = impl_->stored();
    for (std::string& state : impl_->kept_states()) names.push_back(std::move(state));
    throw ModelError(ErrorParts{.what = "There is no such parameter or moment.",
                                .node = name,
                                .expected = nearest_names(name, names),
                                .received = name});
  }
  return found->second;
}
void TrainingSession::set_weights(const std::map<std::string, Tensor>& weights) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->assign(weights, impl_->stored(), "trained parameter");
  impl_->set_averages(weights);
}
void TrainingSession::set_optimizer_state(const std::map<std::string, Tensor>& moments) {
  const std::lock_guard lock(impl_->programs.call_lock);
  for (const auto& named : moments) impl_->require_here(named.first);
  if (const std::string name = impl_->no_count(moments); !name.empty()) {
    throw DataError(ErrorParts{.what = "A count of steps is not valid; nothing was changed.",
                               .node = name,
                               .expected = "a whole number of at least 0",
                               .received = fmt::format("{}", moments.at(name).data<float>()[0])});
  }
  if (const auto wrong = impl_->no_moment(moments, false)) {
    throw DataError(ErrorParts{.what = "An optimizer moment is not valid; nothing was changed.",
                               .node = wrong->name,
                               .expected = impl_->moment_range(wrong->name),
                               .received = fmt::format("{}", wrong->received)});
  }
  impl_->assign(impl_->kept(moments), impl_->kept_states(), "optimizer moment");
}

int64_t TrainingSession::step_count() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->steps;
}
void TrainingSession::set_step_count(int64_t count) {
  const std::lock_guard lock(impl_->programs.call_lock);
  if (count < 0) {
    throw DataError(ErrorParts{.what = "The number of steps cannot be negative.",
                               .expected = "0 or more",
                               .received = std::to_string(count)});
  }
  impl_->steps = count;
}
double TrainingSession::lr() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->rate();
}
void TrainingSession::set_lr(double lr) {
  const std::lock_guard lock(impl_->programs.call_lock);
  check_rate(lr);
  for (const ParameterGroup& group : impl_->options.groups) {
    if (!group.optimizer) check_rate(lr * group.lr_multiplier);
  }
  impl_->base_lr = lr;
}
void TrainingSession::set_schedule(const ScheduleOptions& schedule) {
  const std::lock_guard lock(impl_->programs.call_lock);
  check_schedule(schedule);
  require_read(schedule);
  impl_->options.schedule = schedule;
}
void TrainingSession::set_group(size_t i, const OptimizerOptions& optimizer) {
  const std::lock_guard lock(impl_->programs.call_lock);
  std::vector<ParameterGroup>& groups = impl_->options.groups;
  if (i >= groups.size() || !groups[i].optimizer) {
    throw ModelError(
        ErrorParts{.what = "There is no such group with an optimizer of its own.",
                   .expected = fmt::format("one of {}", counted(groups.size(), "group")),
                   .received = std::to_string(i)});
  }
  OptimizerOptions now = optimizer;
  now.own = groups[i].optimizer->own;
  check_optimizer(now);
  if (!same_update(now, *groups[i].optimizer)) {
    throw ModelError(ErrorParts{
        .what = "Options that are compiled into the step cannot change between steps.",
        .expected = fmt::format("the flags of before, and the momentum: {}, momentum {}",
                                groups[i].optimizer->kind, momentum_of(*groups[i].optimizer)),
        .received = fmt::format("{}, momentum {}", optimizer.kind, momentum_of(optimizer))});
  }
  groups[i].optimizer = std::move(now);
}
double TrainingSession::loss_scale() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->loss_scale;
}
void TrainingSession::set_loss_scale(double scale) {
  const std::lock_guard lock(impl_->programs.call_lock);
  const LossScaleOptions& o = impl_->options.loss_scale;
  if (!scales_loss(impl_->options) || !(scale >= o.min && scale <= o.max)) {
    throw DataError(ErrorParts{
        .what = "The loss scale cannot be set.",
        .expected = scales_loss(impl_->options) ? fmt::format("{} to {}", o.min, o.max)
                                                : "precision \"fp16\"",
        .received = fmt::format("{} at precision \"{}\"", scale, impl_->options.precision)});
  }
  impl_->loss_scale = scale;
  impl_->clean_steps = 0;
}
void TrainingSession::set_seed(uint64_t seed) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->options.seed = seed;
  impl_->program->set_seed(seed);
}
uint64_t TrainingSession::run_count() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->program->run_count();
}
void TrainingSession::set_run_count(uint64_t count) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->program->set_run_count(count);
}
const TrainingOptions& TrainingSession::options() const { return impl_->options; }

void TrainingSession::save_checkpoint(const std::filesystem::path& path,
                                      const std::string& user) const {
  save_checkpoint(path, user, {});
}

void TrainingSession::save_checkpoint(const std::filesystem::path& path, const std::string& user,
                                      const std::map<std::string, Tensor>& others) const try {
  const std::lock_guard lock(impl_->programs.call_lock);
  const Budget budget(impl_->options.limits);  // write_checkpoint() reads the checkpoint back
  impl_->require_whole();
  impl_->require_applied("save_checkpoint()");
  const ScheduleOptions& s = impl_->options.schedule;
  write_checkpoint(
      path, {.fingerprint = impl_->fingerprint,
             .weights = impl_->shared(impl_->stored()),
             .moments = impl_->with_others(others),
             .step = impl_->steps,
             .seed = impl_->options.seed,
             .run_count = impl_->program->run_count(),
             .lr = impl_->base_lr,
             .loss_scale = scales_loss(impl_->options) ? impl_->loss_scale : 0,
             .clean_steps = impl_->clean_steps,
             .threads = omp_get_max_threads(),
             .schedule = fmt::format("{} warmup_steps={} total_steps={} min_lr_ratio={}", s.kind,
                                     s.warmup_steps, s.total_steps, s.min_lr_ratio),
             .settings = recorded_settings(impl_->options),
             .user = user});
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string TrainingSession::load_checkpoint(const std::filesystem::path& path) try {
  const std::lock_guard lock(impl_->programs.call_lock);
  const Budget budget(impl_->options.limits);
  std::function<bool(const std::string&)> is_kept;
  if (impl_->held) is_kept = [&](const auto& name) { return impl_->elsewhere.count(name) == 0; };
  Checkpoint checkpoint = read_checkpoint(path, is_kept);
  require_same_states(checkpoint.weights, impl_->shared(impl_->stored()), path);
  for (const std::string& name : impl_->model.counts) {  // older checkpoints have one count
    checkpoint.moments.try_emplace(name, Tensor::scalar(static_cast<float>(checkpoint.step)));
  }
  std::string converted_note = impl_->convert_states(checkpoint.moments, path);
  std::map<std::string, Tensor> types = impl_->shared(impl_->kept_states());
  types.insert(impl_->elsewhere.begin(), impl_->elsewhere.end());
  require_same_states(checkpoint.moments, types, path);
  if (const std::string name = impl_->no_count(checkpoint.moments); !name.empty()) {
    throw CheckpointError(ErrorParts{.what = fmt::format("{} is damaged.", path.string()),
                                     .node = name,
                                     .expected = "a count of steps",
                                     .received = "an invalid number"});
  }
  if (const auto wrong = impl_->no_moment(checkpoint.moments, true)) {
    throw CheckpointError(
        ErrorParts{.what = fmt::format("{} holds an optimizer moment that is not valid; nothing "
                                       "was changed.",
                                       path.string()),
                   .node = wrong->name,
                   .expected = impl_->moment_range(wrong->name),
                   .received = fmt::format("{}", wrong->received),
                   .remedy = "Load a checkpoint from before."});
  }
  if (checkpoint.fingerprint != impl_->fingerprint) {
    throw CheckpointError(ErrorParts{
        .what = fmt::format("{} belongs to another model.", path.string()),
        .expected = "fingerprint " + impl_->fingerprint,
        .received = "fingerprint " + checkpoint.fingerprint,
        .remedy = fmt::format(
            "Its parameters match, but operators, loss or optimizer differ{}. Load it with the "
            "model and options it was saved with; nothing was changed.",
            in_brackets(impl_->changes_since(checkpoint.settings)))});
  }
  for (const auto& other : impl_->elsewhere) checkpoint.moments.erase(other.first);
  std::vector<std::string> names = impl_->stored();
  for (std::string& name : impl_->kept_states()) names.push_back(std::move(name));
  checkpoint.weights.merge(checkpoint.moments);
  impl_->assign(checkpoint.weights, names, "parameter or moment");  // from here on nothing fails
  impl_->accumulated = {};
  impl_->steps = checkpoint.step;
  impl_->base_lr = checkpoint.lr;
  impl_->loaded_lr = checkpoint.lr;
  impl_->loaded_settings = std::move(checkpoint.settings);
  impl_->saved_threads = checkpoint.threads;
  impl_->loaded_hash = std::move(checkpoint.hash);
  impl_->converted_note = std::move(converted_note);
  if (scales_loss(impl_->options) && checkpoint.loss_scale > 0) {
    const LossScaleOptions& o = impl_->options.loss_scale;
    impl_->loss_scale = std::clamp(checkpoint.loss_scale, o.min, o.max);
    impl_->clean_steps = checkpoint.clean_steps;
  }
  impl_->options.seed = checkpoint.seed;
  impl_->program->set_seed(checkpoint.seed);
  impl_->program->set_run_count(checkpoint.run_count);
  return std::move(checkpoint.user);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string TrainingSession::checkpoint_hash() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->loaded_hash;
}

std::string TrainingSession::checkpoint_note() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  std::vector<std::string> notes;
  if (!impl_->converted_note.empty()) notes.push_back(impl_->converted_note);
  if (const std::string text = impl_->changes_since(impl_->loaded_settings); !text.empty()) {
    notes.push_back("options are others than in the checkpoint: " + text);
  }
  const int then = impl_->saved_threads, now = omp_get_max_threads();
  if (then != 0 && then != now) {
    notes.push_back(fmt::format(
        "the checkpoint was saved with {}, there are {} now: results may differ in their "
        "last bits from those of a run that was not interrupted (gradients of convolutions and "
        "recurrent layers are summed by thread; set OMP_NUM_THREADS={} to go on bit for bit)",
        counted(then, "thread"), now, then));
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

std::string TrainingSession::export_onnx_bytes(bool for_inference, bool merge_adapters) const try {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->detached(for_inference, merge_adapters)->whole();
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void TrainingSession::export_onnx(const std::filesystem::path& path, bool for_inference) const {
  export_onnx(path, ExportOptions{.for_inference = for_inference});
}

void TrainingSession::export_onnx(const std::filesystem::path& path,
                                  const ExportOptions& options) const try {
  const std::lock_guard lock(impl_->programs.call_lock);
  // Where memory is scarce, what the export takes is not beside what waits for the next step.
  if (!impl_->options.memory_limit.empty()) impl_->programs.release_memory();
  impl_->detached(options.for_inference, options.merge_adapters)->write(path, options);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

StepPlan TrainingSession::plan(std::span<const Tensor> inputs) try {
  const std::lock_guard lock(impl_->programs.call_lock);
  std::vector<Tensor> storage;
  const PlanInfo info = impl_->program->plan(types_of(impl_->adopt(inputs, &storage)));
  StepPlan plan = step_plan(info, bytes_of(impl_->shared(impl_->model.parameters)));
  std::vector<std::string> moments = impl_->kept_states();
  std::erase_if(moments, [&](const std::string& name) {  // counts of steps are not in the sum
    const auto& counts = impl_->model.counts;
    return std::find(counts.begin(), counts.end(), name) != counts.end();
  });
  plan.optimizer_bytes = bytes_of(impl_->shared(moments));
  plan.peak_bytes += impl_->programs.state_bytes() - plan.parameter_bytes;
  for (const std::string& name : impl_->programs.offloaded)
    plan.offloaded_bytes += impl_->programs.states.at(name).nbytes();
  return plan;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

MemoryReport TrainingSession::memory_report(std::span<const Tensor> inputs) try {
  const std::lock_guard lock(impl_->programs.call_lock);
  std::vector<Tensor> storage;
  return impl_->program->memory_report(types_of(impl_->adopt(inputs, &storage)));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

size_t TrainingSession::peak_bytes() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->programs.state_bytes() + impl_->program->peak_bytes();
}

std::string TrainingSession::dump(std::span<const Tensor> inputs, DumpFormat format) {
  const std::lock_guard lock(impl_->programs.call_lock);
  std::vector<Tensor> storage;
  return impl_->program->dump(types_of(impl_->adopt(inputs, &storage)), format);
}
std::string TrainingSession::dump() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return to_text(impl_->program->graph());
}

void TrainingSession::start_profile() {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->programs.start_profile();
}

void TrainingSession::write_profile(const std::filesystem::path& path) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->programs.write_profile(path);
}

void TrainingSession::record(const Exchange& exchange) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->programs.record(exchange);
}

}  // namespace steep
