#include "sessions/training_impl.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <new>
#include <unordered_set>
#include <utility>

#include "data/convert.h"
#include "data/files.h"
#include "ir/seed.h"
#include "model/import/import.h"
#include "passes/pipeline.h"
#include "runtime/budget.h"
#include "runtime/counted.h"
#include "runtime/memory.h"
#include "steep/error.h"
#include "train/custom_optimizer.h"
#include "train/finite.h"
#include "train/loss.h"
#include "train/name_suggestions.h"
#include "train/optimizer.h"
#include "train/own_loss.h"
#include "train/parameters.h"
#include "train/schedule.h"
#include "train/unit_labels.h"

namespace steep {
namespace {

TensorInfo info_of(const std::string& name, const Type& type) {
  TensorInfo info{.name = name, .dtype = type.dtype, .has_rank = type.shape.has_value()};
  if (!type.shape) return info;
  for (const Dim& dim : *type.shape) {
    info.dims.push_back(dim.value());
    info.symbols.push_back(dim.symbol());
  }
  return info;
}

std::string describe(const Tensor& tensor) {
  return fmt::format("{}{}", name_of(tensor.dtype()), to_string(tensor.dims()));
}

/// The text of TrainingSession::batch_note().
std::string note_on_rows(const ImportedModel& model) {
  if (model.fixed_rows == 0) return "";
  const std::string fixed = "the file fixes batches of " + counted(model.fixed_rows, "row");
  return model.rows_stay.empty()
             ? fixed + ", on which nothing in it depends: batches of any size are taken"
             : fmt::format("{}, and no others are taken, since {}", fixed, model.rows_stay);
}

/// Throws ModelError for a weight that is not in the model.
void require_known(const std::map<std::string, Tensor>& weight_data,
                   const std::vector<std::string>& names) {
  const std::unordered_set<std::string> there(names.begin(), names.end());
  for (const auto& [name, tensor] : weight_data) {
    if (there.count(name) != 0) continue;
    throw ModelError(ErrorParts{.what = "The model has no such initializer.",
                                .node = name,
                                .expected = nearest_names(name, names),
                                .received = name});
  }
}

/// What an array of a batch has instead of numbers: "NaN in row 3 of the batch"; "" if nothing.
/// Infinity is left out: masks have it.
std::string missing_numbers(const Tensor& x) {
  if (!x.dims().empty() && x.dims()[0] == 0) return describe(x) + ", which has no rows";
  if (!is_float(x.dtype()) || !converts(x.dtype(), DType::f64)) return "";
  const Tensor numbers = convert(x, DType::f64, "");
  const auto* begin = numbers.data<double>();
  const auto* end = begin + numbers.size();
  const auto* nan = std::find_if(begin, end, [](double number) { return std::isnan(number); });
  if (nan == end) return "";
  const int64_t rows = x.dims().empty() ? 1 : x.dims()[0];
  return fmt::format("NaN in row {} of the batch", (nan - begin) / (numbers.size() / rows));
}

}  // namespace

double read_scalar(const Tensor& tensor) {
  if (tensor.size() != 1) {
    throw ShapeError(ErrorParts{.what = "The loss is not one element.",
                                .expected = "a scalar",
                                .received = to_string(tensor.dims())});
  }
  return scalar_of(tensor);
}

void take_step_outputs(ForwardResult& forward, StepResult* result) {
  for (size_t i = 1; i < forward.outputs.size(); ++i) {
    result->outputs.push_back(std::move(forward.outputs[i]));
  }
}

TrainingSession::Impl::Impl(std::string model_bytes, std::filesystem::path model_folder,
                            TrainingOptions model_options, std::map<std::string, Tensor> weights)
    : bytes(std::move(model_bytes)),
      folder(std::move(model_folder)),
      weight_data(std::move(weights)),
      options(std::move(model_options)),
      base_lr(options.optimizer.lr),
      loss_scale(scales_loss(options) ? options.loss_scale.initial : 1),
      programs({.disabled_passes = {options.disabled_passes.begin(), options.disabled_passes.end()},
                .precision = precision_from(options.precision),
                .seed = options.seed,
                .threads = options.threads,
                .memory_limit = memory_limit_from(options.memory_limit),
                .limits = options.limits,
                .devices = Devices::of(options.providers)}) {
  const Budget budget(options.limits);
  const ThreadBound threads(options.threads);  // of the constants that import folds
  check_passes(programs.options().disabled_passes);
  hold_own_optimizers(&options);
  hold_own_loss(&options);
  ImportedModel source = import_adapted();
  data_files.merge(source.files.data);
  batch_note = note_on_rows(source);
  source.require(options.output.empty() ? "loss" : options.output);
  for (const std::string& name : options.step_outputs) source.require(name);
  if (!options.loss.empty() && options.output.empty() && source.graph.outputs().size() > 1)
    options.output = find_output(source.graph, options).name;
  const auto& names = source.initializers;
  require_known(weight_data, names);
  expand_groups(&options.groups, names, source.constants);
  std::map<std::string, Tensor> initial;
  TrainingOptions chosen = options;
  for (const Adapter& adapter : adapters)
    chosen.trainable.insert(chosen.trainable.end(), {adapter.a(), adapter.b()});
  model = prepare_model(std::move(source.graph), source.initializers, source.constants,
                        left_inside(source.inside), chosen, weight_data, places, &initial);
  leave_out_unused_adapters();
  fingerprint = model_fingerprint(model, options);

  Graph graph = step_graph(model, options);
  take_states(graph, std::move(initial));
  describe_ends(graph);
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const std::optional<OptimizerOptions>& own = options.groups[i].optimizer;
    if (!own) continue;
    groups_[i] = Tensor::zeros(DType::f64, {static_cast<int64_t>(settings_of(*own).size())});
  }
  program = &programs.get(Kind::step, [&] { return std::move(graph); });
}

void TrainingSession::Impl::take_states(const Graph& graph, std::map<std::string, Tensor> initial) {
  for (Value state : graph.states()) {
    const auto weight = initial.find(state.name());
    programs.states[state.name()] = weight != initial.end()
                                        ? std::move(weight->second)
                                        : Tensor::zeros(state.dtype(), state.type().dims());
  }
  offload_states();
  for (const std::string& name : model.parameters) {
    if (!all_finite(programs.states.at(name))) infinite_.insert(name);
  }
  for (const std::string& name : model.counts) counts_.push_back(programs.states.at(name));
}

void TrainingSession::Impl::describe_ends(const Graph& graph) {
  for (Value input : graph.inputs()) {
    if (is_seed(input) || graph.input_phase(input) == Phase::backward) continue;
    inputs.push_back(info_of(input.name(), input.type()));
  }
  for (const Output& output : model.graph.outputs()) {
    outputs.push_back(info_of(output.name, output.value.type()));
  }
  labels = label_form(options, inputs, outputs);
  for (size_t i = 0; labels && i < inputs.size(); ++i) {
    if (inputs[i].name == labels->input.name) label_at = i;
  }
}

double TrainingSession::Impl::rate() const {
  return base_lr * schedule_factor(options.schedule, steps);
}

void TrainingSession::Impl::require_whole() const {
  if (!torn) return;
  throw DataError(ErrorParts{
      .what = fmt::format("The weights are inconsistent: the update of step {} was interrupted, so "
                          "that some weights are of that step and some of the step before.",
                          steps + 1),
      .expected = "weights of one step",
      .received = fmt::format("{} of {} weights and moments replaced since; the cause was: {}",
                              replaced.size(), assignable(), torn_by),
      .remedy = "Load a checkpoint, or set all weights and all optimizer state."});
}

void TrainingSession::Impl::require_applied(const char* call) const {
  if (accumulated.parts == 0) return;
  throw DataError(ErrorParts{
      .what = fmt::format("{} was called while accumulated gradients wait to be applied.", call),
      .expected = "no accumulated gradients",
      .received = fmt::format("those of {}", counted(accumulated.parts, "part")),
      .remedy = "Call apply_gradients(), or drop_gradients()."});
}

void TrainingSession::Impl::require_step() const {
  if (steps != INT64_MAX) return;
  throw DataError(ErrorParts{.what = "The number of steps is at its limit; nothing was changed.",
                             .received = counted(steps, "step"),
                             .remedy = "Set a smaller step_count."});
}

void TrainingSession::Impl::tear(const std::string& cause) {
  incomplete = false;
  torn = true;  // set first, because the next lines may run out of memory
  replaced.clear();
  torn_by = cause;
}

std::vector<Tensor> TrainingSession::Impl::update(Program& updating,
                                                  std::unique_ptr<PendingRun> pending,
                                                  std::span<const Tensor> arrays) {
  auto fail = [&](const std::string& cause) {
    if (!updating.wrote_states()) {  // the state is as if the step had not been tried
      updating.set_run_count(updating.run_count() - 1);
      count_steps(-1);
      return;
    }
    tear(cause);
  };
  count_steps(1);
  try {
    return updating.backward(std::move(pending), arrays);
  } catch (const Error& error) {
    fail(error.parts().what);
    throw;
  } catch (const std::exception& error) {
    fail(error.what());
    throw;
  }
}

std::span<const Tensor> TrainingSession::Impl::adopt(std::span<const Tensor> arrays,
                                                     std::vector<Tensor>* storage) const {
  for (size_t i = 0; i < std::min(arrays.size(), inputs.size()); ++i) {
    const Tensor& array = storage->empty() ? arrays[i] : (*storage)[i];
    const bool label = labels && i == label_at;
    if (label) check_unit_labels(array, options.loss, inputs[i].name);
    if (label ? suits(array, *labels) : array.dtype() == inputs[i].dtype) continue;
    if (!label && !converts(array.dtype(), inputs[i].dtype)) continue;
    if (storage->empty()) storage->assign(arrays.begin(), arrays.end());
    (*storage)[i] =
        label ? as_labels(arrays[i], *labels) : convert(arrays[i], inputs[i].dtype, inputs[i].name);
  }
  return storage->empty() ? arrays : std::span<const Tensor>(*storage);
}

bool TrainingSession::Impl::inspect(ForwardResult& forward, std::span<const Tensor> arrays,
                                    uint64_t run, StepResult* result) {
  result->loss = read_scalar(forward.outputs[0]);
  const bool scaled = scales_loss(options);
  if (options.check_finite || scaled) {
    // With either option the forward phase includes the gradients.
    result->grad_norm = read_scalar(forward.outputs.back());
    forward.outputs.pop_back();
  }
  result->loss_scale = loss_scale;
  result->lr = rate();
  result->step = steps;
  if (std::isfinite(result->loss) && std::isfinite(result->grad_norm)) return true;
  forward.pending.reset();
  if (!scaled || loss_scale <= options.loss_scale.min) {
    program->set_run_count(run);
    explain(*result, arrays);
  }
  adapt_loss_scale(true);
  result->skipped = true;
  return false;
}

StepResult TrainingSession::Impl::step(std::span<const Tensor> arrays) try {
  require_whole();
  require_undivided("step()");
  require_applied("step()");
  accumulated = {};  // also the counts of parts that were left out
  std::vector<Tensor> storage;
  const std::span<const Tensor> feed = adopt(arrays, &storage);
  require_step();
  const uint64_t run = program->run_count();
  write_loss_scale();
  const std::vector<Tensor> fed_later = backward_inputs();  // may throw: before the run is counted
  ForwardResult forward = program->forward(feed);
  StepResult result;
  const bool fits = inspect(forward, feed, run, &result);
  take_step_outputs(forward, &result);
  if (!fits) return result;
  // All checks are done; from here on weights change.
  const std::vector<Tensor> backward = update(*program, std::move(forward.pending), fed_later);
  if (options.check_finite) require_finite();
  result.step = ++steps;
  if (scales_loss(options)) adapt_loss_scale(false);
  if (!backward.empty()) result.grad_norm = read_scalar(backward[0]);
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string TrainingSession::Impl::not_finite() const {
  for (const std::string& name : model.parameters) {
    if (infinite_.count(name) == 0 && !all_finite(programs.states.at(name))) return name;
  }
  return "";
}

void TrainingSession::Impl::require_finite() {
  const std::string name = not_finite();
  if (name.empty()) return;
  tear(fmt::format("the update of step {} left NaN or infinity in '{}'", steps + 1, name));
  throw DataError(ErrorParts{
      .what = fmt::format("The update of step {} left a weight that is not finite.", steps + 1),
      .node = name,
      .expected = "finite weights",
      .received = fmt::format("NaN or infinity in {}", describe(programs.states.at(name))),
      .remedy = "Load a checkpoint from before, or set all weights and all optimizer state; then "
                "lower the learning rate, raise the optimizer's epsilon, or clip gradients."});
}

void TrainingSession::Impl::write_loss_scale() {
  if (!scales_loss(options)) return;
  *programs.states.at(std::string(kLossScaleState)).data<float>() = static_cast<float>(loss_scale);
}

std::vector<Tensor> TrainingSession::Impl::backward_inputs() {
  *lr_input_.data<float>() = static_cast<float>(rate());
  *step_input_.data<int64_t>() = steps + 1;
  std::vector<Tensor> result{lr_input_};
  for (auto& [i, tensor] : groups_) {
    std::vector<double> settings = settings_of(*options.groups[i].optimizer);
    settings[0] *= schedule_factor(options.schedule, steps);
    std::copy(settings.begin(), settings.end(), tensor.data<double>());
    result.push_back(tensor);
  }
  result.push_back(step_input_);
  return result;
}

void TrainingSession::Impl::count_steps(float more) {
  for (Tensor& count : counts_) *count.data<float>() += more;
}

void TrainingSession::Impl::adapt_loss_scale(bool overflow) {
  const LossScaleOptions& o = options.loss_scale;
  if (overflow) {
    loss_scale = std::max(loss_scale / 2, o.min);
    clean_steps = 0;
  } else if (++clean_steps == o.growth_interval) {
    loss_scale = std::min(loss_scale * 2, o.max);
    clean_steps = 0;
  }
}

void TrainingSession::Impl::explain(const StepResult& result,
                                    std::span<const Tensor> arrays) const {
  const bool loss_is_bad = !std::isfinite(result.loss);
  if (const std::string name = not_finite(); !name.empty()) {
    throw DataError(ErrorParts{
        .what = fmt::format(
            "The {} of step {} is {}, since the weights were not finite before this step.",
            loss_is_bad ? "loss" : "gradients' norm", steps + 1,
            loss_is_bad ? result.loss : result.grad_norm),
        .node = name,
        .expected = "finite weights",
        .received = fmt::format("NaN or infinity in {}", describe(programs.states.at(name))),
        .remedy = "Load a checkpoint from before that; with check_finite, the step that does it "
                  "is an error."});
  }
  ErrorParts parts{.what = fmt::format("The {} of step {} is {}; no weight was changed.",
                                       loss_is_bad ? "loss" : "gradients' norm", steps + 1,
                                       loss_is_bad ? result.loss : result.grad_norm),
                   .remedy =
                       "Look at the data of this step, lower the learning rate, or clip "
                       "gradients."};
  for (size_t i = 0; i < arrays.size(); ++i) {
    parts.received = missing_numbers(arrays[i]);
    if (parts.received.empty()) continue;
    parts.node = inputs[i].name;
    parts.expected = "numbers";
    parts.remedy = "Leave such rows out, or put numbers in their place.";
    throw DataError(std::move(parts));
  }
  if (options.loss == "binary_cross_entropy")
    parts.remedy += " For scores, choose the loss binary_cross_entropy_with_logits.";
  // Runs the step again, with each node on its own and checked. Its updates are not made, because
  // they belong to backward, which does not run.
  TrainingOptions watched = options;
  watched.check_finite = true;
  ProgramOptions how = programs.options();
  how.check_finite = true;
  how.memory_limit = {};  // a plan without fusion takes more
  how.seed = options.seed;
  for (const Pass& pass : passes()) {
    // This pass stays, because a value that overflows float16 is the usual cause.
    if (pass.name != "precision_fp16") how.disabled_passes.emplace(pass.name);
  }
  ProgramSet<Kind> watching(how);
  watching.states = programs.states;
  Program& diagnosis = watching.get(Kind::step, [&] {
    bool weighs = false;
    return held ? accumulation_graph(model, watched, &weighs) : step_graph(model, watched);
  });
  diagnosis.set_run_count(program->run_count());
  try {
    diagnosis.forward(arrays);
  } catch (const DataError& error) {
    parts.node = error.parts().node;
    parts.op = error.parts().op;
    parts.expected = error.parts().expected;
    parts.received = error.parts().received;
  }
  throw DataError(std::move(parts));
}

EvalResult TrainingSession::Impl::eval(std::span<const Tensor> arrays) try {
  require_whole();
  std::vector<Tensor> storage;
  const std::span<const Tensor> feed = adopt(arrays, &storage);
  const bool without_label = model.label_added && feed.size() + 1 == inputs.size();
  EvalResult result;
  const Kind kind = without_label ? Kind::evaluation : Kind::evaluation_with_loss;
  Program& evaluation =
      programs.get(kind, [&] { return eval_graph(model, options, !without_label); });
  evaluation.set_seed(options.seed);
  result.outputs = evaluation.forward(feed).outputs;
  if (!without_label) {
    if (result.outputs.size() > outputs.size() + 1) {
      result.weight = read_scalar(result.outputs.back());
      result.outputs.pop_back();
    }
    result.loss = read_scalar(result.outputs.back());
    result.outputs.pop_back();
  }
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::map<std::string, Tensor> TrainingSession::Impl::gradients(std::span<const Tensor> arrays,
                                                               double* loss) try {
  require_whole();
  std::vector<Tensor> adopted;
  const std::span<const Tensor> feed = adopt(arrays, &adopted);
  Program& gradient = programs.get(Kind::gradients, [&] { return gradient_graph(model, options); });
  write_loss_scale();
  gradient.set_seed(options.seed);
  gradient.set_run_count(program->run_count());
  std::vector<Tensor> results = gradient.forward(feed).outputs;
  if (loss != nullptr) *loss = read_scalar(results[0]);
  std::map<std::string, Tensor> result;
  for (size_t i = 0; i < model.parameters.size(); ++i) {
    result[model.parameters[i]] = std::move(results[i + 1]);
  }
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::vector<Tensor> TrainingSession::Impl::in_order(const Inputs& arrays,
                                                    bool label_optional) const {
  std::vector<std::string> names, missing;
  std::vector<Tensor> result;
  for (const TensorInfo& info : inputs) {
    names.push_back(info.name);
    const auto found = arrays.find(info.name);
    if (found != arrays.end()) {
      result.push_back(found->second);
    } else if (!(label_optional && model.label_added && &info == &inputs.back())) {
      missing.push_back(info.name);
    }
  }
  const std::unordered_set<std::string> there(names.begin(), names.end());
  for (const auto& [name, tensor] : arrays) {
    if (there.count(name) != 0) continue;
    throw DataError(ErrorParts{.what = "The model has no such input.",
                               .node = name,
                               .expected = nearest_names(name, names),
                               .received = name});
  }
  if (!missing.empty()) {
    throw DataError(ErrorParts{.what = "An input is missing.",
                               .node = missing[0],
                               .expected = list_names(names),
                               .received = "no " + list_names(missing)});
  }
  return result;
}

}  // namespace steep
