// GradientSession: checks arguments, and runs a GradientProgram whose weights are inputs.
#include "steep/gradient_session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "data/convert.h"
#include "ir/seed.h"
#include "model/import/import.h"
#include "ops/build.h"
#include "runtime/budget.h"
#include "runtime/memory.h"
#include "sessions/gradient_program.h"
#include "sessions/step_plan.h"
#include "train/step.h"

namespace steep {
namespace {

using Tensors = GradientSession::Tensors;

TensorInfo info_of(const std::string& name, const Type& type) {
  TensorInfo info{.name = name, .dtype = type.dtype, .has_rank = type.shape.has_value()};
  if (!type.shape) return info;
  for (size_t i = 0; i < type.shape->size(); ++i) {
    const Dim& dim = (*type.shape)[i];
    info.dims.push_back(dim.value());
    // The importer names unnamed extents "input.dimN"; such names are not the model's.
    info.symbols.push_back(dim.symbol() == fmt::format("{}.dim{}", name, i) ? "" : dim.symbol());
  }
  return info;
}

std::string text_of(const Tensor& t) {
  return fmt::format("{}{}", name_of(t.dtype()), to_string(t.dims()));
}

std::string names_of(const std::vector<std::string>& names) {
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

std::vector<std::string> names_of(const std::vector<TensorInfo>& infos) {
  std::vector<std::string> names;
  for (const TensorInfo& info : infos) names.push_back(info.name);
  return names;
}

const TensorInfo* find(const std::vector<TensorInfo>& infos, const std::string& name) {
  for (const TensorInfo& info : infos) {
    if (info.name == name) return &info;
  }
  return nullptr;
}

/// `what` is the subject of the error: "An input", "A weight".
void check_type(const std::string& what, const TensorInfo& info, const Tensor& tensor) {
  bool fits = tensor.dtype() == info.dtype;
  if (info.has_rank) {
    fits = fits && tensor.dims().size() == info.dims.size();
    for (size_t i = 0; fits && i < info.dims.size(); ++i) {
      fits = info.dims[i] < 0 || info.dims[i] == tensor.dims()[i];
    }
  }
  if (fits) return;
  throw ShapeError({.what = what + " has the wrong type.",
                    .node = info.name,
                    .expected = info.text(),
                    .received = text_of(tensor),
                    .remedy = "Convert or reshape the array."});
}

/// Makes the outputs with these names the outputs of the graph, in that order.
void choose_outputs(Graph& g, const std::vector<std::string>& names) {
  std::vector<Output> choice;
  std::vector<std::string> candidates;
  for (const Output& o : g.outputs()) candidates.push_back(o.name);
  for (const std::string& name : names) {
    const auto it = std::find(candidates.begin(), candidates.end(), name);
    if (it == candidates.end()) {
      throw ModelError({.what = "The model has no such output.",
                        .node = name,
                        .expected = names_of(candidates),
                        .received = name});
    }
    choice.push_back(g.outputs()[static_cast<size_t>(it - candidates.begin())]);
  }
  if (names.empty()) return;
  g.set_outputs(std::move(choice));
  g.prune();
}

/// Turns a constant into an input of the same name. Returns the constant's tensor.
Tensor feed(Graph& g, Value initializer) {
  const std::string name = initializer.name();
  Tensor tensor = *constant(initializer);
  g.rename(initializer, name + ".initial");
  const Value input = g.add_input(name, {tensor.dtype(), to_shape(tensor.dims())});
  g.rename(input, name);  // add_input() still counts the name as used
  g.replace_uses(initializer, input);
  return tensor;
}

[[noreturn]] void refuse_dtype(const std::string& name, const Type& type) {
  throw ModelError({.what = "A name in `wrt` is not a float: it has no gradient.",
                    .node = name,
                    .expected = "a float input or initializer",
                    .received = info_of(name, type).text(),
                    .remedy = "Store it as floats in the file, name the floats that are computed "
                              "from it, or train a quantised weight in a TrainingSession "
                              "(docs/training.md)."});
}

uint64_t next_seed(uint64_t seed, uint64_t run) { return seed * 0x9E3779B97F4A7C15u + run; }

}  // namespace

struct GradientSession::Impl {
  Impl(ImportedModel model, GradientSessionOptions with);

  /// Turns initializers in `wrt` into inputs, and checks all names.
  void find_sources(Graph& g, const std::vector<std::string>& initializers);
  /// The tensors in the order of the program's inputs; with `copied`, none shares the caller's
  /// memory.
  std::vector<Tensor> in_order(const Tensors& arrays, bool copied);
  std::vector<Type> types_of(const Tensors& arrays);
  void check_weights(const Tensors& arrays) const;
  DType weight_dtype() const;

  GradientSessionOptions options;
  Tensors weights;
  std::set<std::string> bound;  // weights that share the caller's memory
  std::vector<TensorInfo> inputs;
  std::vector<TensorInfo> weight_infos;
  std::vector<TensorInfo> outputs;
  std::unique_ptr<GradientProgram> program;
  std::unique_ptr<GradientProgram> evaluation;
  std::string statistics;  // the name of a normalisation in training mode; "" if there is none
  std::vector<std::string> order;
  std::atomic<uint64_t> runs = 0;
  std::mutex lock;  // of the weights
};

struct GradientSession::Run::State {
  std::shared_ptr<Impl> session;  // keeps the program alive
  GradientRun run;
  std::vector<Dims> outputs;
  std::vector<std::pair<DType, Dims>> wrt;
  uint64_t number = 0;
  std::atomic<bool> done = false;
};

GradientSession::Impl::Impl(ImportedModel model, GradientSessionOptions with)
    : options(std::move(with)) {
  const ThreadBound threads(options.threads);
  Graph& g = model.graph;
  for (const std::string& name : options.outputs) model.require(name);
  if (options.outputs.empty() && !model.left_out.empty())
    model.require(model.left_out.begin()->first);
  choose_outputs(g, options.outputs);
  find_sources(g, model.initializers);
  for (Value v : g.inputs()) {
    if (is_seed(v)) continue;
    order.push_back(v.name());
    if (weights.count(v.name()) == 0) inputs.push_back(info_of(v.name(), v.type()));
  }
  for (const Output& o : g.outputs()) outputs.push_back(info_of(o.name, o.value.type()));
  for (Node n : g.nodes()) {
    if (trains_statistics(n)) statistics = n.name();
  }
  Graph without = g;
  remove_dropout(without);
  without.prune();
  GradientProgramOptions how{
      .inputs_stay = true,
      .limits = options.limits,
      .precision = precision_from(options.precision),
      .memory_limit = memory_limit_from(options.memory_limit),
      .disabled_passes = {options.disabled_passes.begin(), options.disabled_passes.end()},
      .threads = options.threads,
      .devices = Devices::of(options.providers)};
  evaluation = std::make_unique<GradientProgram>(std::move(without), how);
  how.input_gradients = options.wrt;
  how.results_may_change.assign(g.outputs().size(), !options.borrow);
  program = std::make_unique<GradientProgram>(std::move(g), std::move(how));
  const GradientPattern& pattern = program->differentiable();
  if (std::find(pattern.begin(), pattern.end(), true) != pattern.end()) return;
  throw ModelError({.what = "No output depends differentiably on the values in `wrt`.",
                    .expected = "an output that depends on " + names_of(options.wrt),
                    .received = names_of(names_of(outputs))});
}

void GradientSession::Impl::find_sources(Graph& g, const std::vector<std::string>& initializers) {
  if (options.wrt.empty()) {
    throw ModelError({.what = "There is nothing to differentiate with respect to.",
                      .expected = "names of inputs or initializers in `wrt`"});
  }
  std::set<std::string> names;
  for (const std::string& name : options.wrt) {
    const Value v = g.find(name);
    const bool source = v && (v.role() == Role::input || constant(v));
    if (v && !is_float(v.dtype()) && (source || v.type().kind == Kind::tensor)) {
      refuse_dtype(name, v.type());
    }
    const bool fits = source && is_float(v.dtype());
    if (!fits || !names.insert(name).second) {
      std::vector<std::string> candidates;
      for (Value input : g.inputs()) {
        if (!is_seed(input) && is_float(input.dtype())) candidates.push_back(input.name());
      }
      for (const std::string& initializer : initializers) {  // those in `weights` are fed
        if (weights.count(initializer) == 0) candidates.push_back(initializer);
      }
      throw ModelError({.what = fits ? "A name stands twice in `wrt`."
                                     : "The model has no such float input or initializer.",
                        .node = name,
                        .expected = names_of(candidates),
                        .received = name});
    }
    if (v.role() == Role::input) continue;
    weights[name] = feed(g, v);
    weight_infos.push_back(info_of(name, g.find(name).type()));
  }
}

std::vector<Tensor> GradientSession::Impl::in_order(const Tensors& arrays, bool copied) {
  for (const auto& [name, tensor] : arrays) {
    if (std::find(order.begin(), order.end(), name) != order.end()) continue;
    throw DataError({.what = "The model has no such input.",
                     .node = name,
                     .expected = names_of(order),
                     .received = name,
                     .remedy = "Feed the model's inputs and the session's weights, nothing else."});
  }
  const std::lock_guard guard(lock);
  std::vector<Tensor> result;
  for (const std::string& name : order) {
    const auto found = arrays.find(name);
    const TensorInfo* weight = find(weight_infos, name);
    if (found == arrays.end() && weight != nullptr) {
      const Tensor& own = weights.at(name);
      result.push_back(copied && bound.count(name) != 0 ? own.clone() : own);
      continue;
    }
    const TensorInfo& info = weight != nullptr ? *weight : *find(inputs, name);
    if (found == arrays.end()) {
      throw DataError({.what = "An input is missing.",
                       .node = name,
                       .expected = info.text(),
                       .received = "no value of this name",
                       .remedy = fmt::format("Feed an array for '{}'.", name)});
    }
    const Tensor& fed = found->second;
    const bool fits = fed.dtype() == info.dtype;
    if (weight == nullptr && !fits && converts(fed.dtype(), info.dtype)) {
      result.push_back(convert(fed, info.dtype, name));
      check_type("An input", info, result.back());
      continue;
    }
    check_type(weight != nullptr ? "A weight" : "An input", info, fed);
    result.push_back(copied ? fed.clone() : fed);
  }
  return result;
}

std::vector<Type> GradientSession::Impl::types_of(const Tensors& arrays) {
  std::vector<Type> types;
  for (const Tensor& t : in_order(arrays, false)) types.push_back({t.dtype(), to_shape(t.dims())});
  return types;
}

void GradientSession::Impl::check_weights(const Tensors& arrays) const {
  for (const auto& [name, tensor] : arrays) {
    const TensorInfo* info = find(weight_infos, name);
    if (info == nullptr) {
      throw ModelError({.what = "The session has no such weight.",
                        .node = name,
                        .expected = names_of(names_of(weight_infos)),
                        .received = name,
                        .remedy = "Weights are the initializers named in `wrt`."});
    }
    check_type("A weight", *info, tensor);
  }
}

DType GradientSession::Impl::weight_dtype() const {
  if (weight_infos.empty()) {
    throw ShapeError({.what = "The session has no weights to put into one buffer.",
                      .expected = "an initializer in `wrt`",
                      .received = names_of(options.wrt)});
  }
  const TensorInfo& first = weight_infos.front();
  for (const TensorInfo& info : weight_infos) {
    if (info.dtype == first.dtype) continue;
    throw ShapeError({.what = "Weights of several dtypes cannot share one buffer.",
                      .node = info.name,
                      .expected = first.text(),
                      .received = info.text(),
                      .remedy = "Take them by name."});
  }
  return first.dtype;
}

GradientSession::GradientSession(const std::filesystem::path& model,
                                 GradientSessionOptions options) try {
  const Budget budget(options.limits);
  ImportedModel source = import_model(model, {.limits = options.limits,
                                              .leave_out = true,
                                              .named = {options.wrt.begin(), options.wrt.end()}});
  impl_ = std::make_shared<Impl>(std::move(source), std::move(options));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

GradientSession::GradientSession(std::span<const std::byte> model, GradientSessionOptions options,
                                 const std::filesystem::path& folder) try {
  const Budget budget(options.limits);
  ImportedModel source = import_model(model,
                                      {.limits = options.limits,
                                       .leave_out = true,
                                       .named = {options.wrt.begin(), options.wrt.end()}},
                                      folder);
  impl_ = std::make_shared<Impl>(std::move(source), std::move(options));
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

GradientSession::~GradientSession() = default;
GradientSession::GradientSession(GradientSession&&) noexcept = default;
GradientSession& GradientSession::operator=(GradientSession&&) noexcept = default;

GradientSession::Run::Run() = default;
GradientSession::Run::~Run() = default;
GradientSession::Run::Run(Run&&) noexcept = default;
GradientSession::Run& GradientSession::Run::operator=(Run&&) noexcept = default;

GradientSession::Forward GradientSession::forward(const Tensors& inputs) try {
  Impl& s = *impl_;
  Forward result;
  result.run.state_ = std::make_unique<Run::State>();
  Run::State& state = *result.run.state_;
  state.run.inputs = s.in_order(inputs, !s.options.borrow);
  state.number = s.runs++;
  state.run.seed = next_seed(s.options.seed, state.number);
  for (const std::string& name : s.options.wrt) {
    const auto at = std::find(s.order.begin(), s.order.end(), name) - s.order.begin();
    const Tensor& source = state.run.inputs[static_cast<size_t>(at)];
    state.wrt.emplace_back(source.dtype(), source.dims());
  }
  result.outputs = s.program->forward(state.run, true).outputs;
  for (const Tensor& y : result.outputs) state.outputs.push_back(y.dims());
  state.session = impl_;
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::vector<Tensor> GradientSession::eval(const Tensors& inputs) try {
  Impl& s = *impl_;
  if (!s.statistics.empty()) {
    throw ModelError(
        {.what = "eval() would not update the running statistics of a model in training mode.",
         .node = s.statistics,
         .op = "BatchNormalization",
         .expected = "normalisations with training_mode 0",
         .remedy = "Evaluate a copy of the model with training_mode 0 and statistics "
                   "of your own, or use a TrainingSession."});
  }
  GradientRun run{.inputs = s.in_order(inputs, false)};
  run.seed = next_seed(s.options.seed, s.runs++);
  return s.evaluation->forward(run, false).outputs;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

namespace {

void check_run(bool own, bool done, uint64_t number) {
  if (!own) {
    throw DataError({.what = "The run is of another session.",
                     .expected = "a run that forward() of this session returned"});
  }
  if (!done) return;
  throw DataError({.what = "Backward of this run was done already; its memory is freed.",
                   .node = fmt::format("run {}", number),
                   .expected = "one backward for each forward",
                   .received = "a second one",
                   .remedy = "Call forward() again, or add up the output gradients first."});
}

/// The gradients in the order of the outputs; undefined for outputs without one.
std::vector<Tensor> gradients_by_output(const std::vector<TensorInfo>& outputs,
                                        const std::vector<Dims>& dims,
                                        const GradientPattern& differentiable,
                                        const Tensors& gradients) {
  std::vector<Tensor> result(outputs.size());
  std::vector<std::string> possible;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (differentiable[i]) possible.push_back(outputs[i].name);
  }
  for (const auto& [name, gradient] : gradients) {
    const TensorInfo* output = find(outputs, name);
    const auto at = static_cast<size_t>(output - outputs.data());
    if (output == nullptr || !differentiable[at]) {
      throw DataError({.what = output == nullptr ? "The model has no such output."
                                                 : "The output cannot have a gradient: it does not "
                                                   "depend differentiably on anything in `wrt`.",
                       .node = name,
                       .expected = names_of(possible),
                       .received = name});
    }
    const TensorInfo info{.name = name, .dtype = output->dtype, .dims = dims[at]};
    result[at] =
        converts(gradient.dtype(), info.dtype) ? convert(gradient, info.dtype, name) : gradient;
    check_type("The gradient of an output", info, result[at]);
  }
  if (!gradients.empty()) return result;
  if (outputs.size() != 1 || element_count(dims[0]) != 1) {
    throw DataError(
        {.what = "No output has a gradient.",
         .expected = "gradients of some of: " + names_of(possible),
         .received = "none",
         .remedy = "Output gradients can be left out only if the single output is one number."});
  }
  result[0] =
      convert(Tensor::from({1.0F}, {}), outputs[0].dtype, outputs[0].name).reshaped(dims[0]);
  return result;
}

}  // namespace

GradientSession::Tensors GradientSession::backward(Run& run, const Tensors& output_gradients) try {
  Impl& s = *impl_;
  Run::State* state = run.state_.get();
  const bool own = state != nullptr && state->session == impl_;
  check_run(own, own && state->done, own ? state->number : 0);
  const std::vector<Tensor> gradients =
      gradients_by_output(s.outputs, state->outputs, s.program->differentiable(), output_gradients);
  check_run(own, state->done.exchange(true), state->number);
  GradientRun once = std::move(state->run);
  state->run = {};
  std::vector<Tensor> tensors = s.program->backward(once, gradients);
  Tensors results;
  for (size_t i = 0; i < s.options.wrt.size(); ++i) {
    Tensor& gradient = tensors[i];
    if (!gradient.defined()) gradient = Tensor::zeros(state->wrt[i].first, state->wrt[i].second);
    results[s.options.wrt[i]] = std::move(gradient);
  }
  return results;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::vector<TensorInfo> GradientSession::input_info() const { return impl_->inputs; }
std::vector<TensorInfo> GradientSession::output_info() const { return impl_->outputs; }
std::vector<TensorInfo> GradientSession::weight_info() const { return impl_->weight_infos; }
std::vector<bool> GradientSession::differentiable() const {
  return impl_->program->differentiable();
}
const GradientSessionOptions& GradientSession::options() const { return impl_->options; }

StepPlan GradientSession::plan(const Tensors& inputs) try {
  Impl& s = *impl_;
  size_t parameters = 0;
  {
    const std::lock_guard guard(s.lock);
    for (const auto& [name, weight] : s.weights) parameters += weight.nbytes();
  }
  return step_plan(s.program->plan(s.types_of(inputs), true), parameters);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

std::string GradientSession::dump(const Tensors& inputs, DumpFormat format) try {
  return impl_->program->dump(impl_->types_of(inputs), true, format);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void GradientSession::start_profile() { impl_->program->start_profile(); }

void GradientSession::write_profile(const std::filesystem::path& path) {
  impl_->program->write_profile(path);
}

GradientSession::Tensors GradientSession::weights() const {
  const std::lock_guard guard(impl_->lock);
  Tensors copies;
  for (const auto& [name, tensor] : impl_->weights) copies[name] = tensor.clone();
  return copies;
}

void GradientSession::set_weights(const Tensors& weights) {
  impl_->check_weights(weights);
  Tensors copies;
  for (const auto& [name, tensor] : weights) copies[name] = tensor.clone();
  const std::lock_guard guard(impl_->lock);
  for (auto& [name, tensor] : copies) {
    impl_->weights[name] = std::move(tensor);
    impl_->bound.erase(name);
  }
}

void GradientSession::bind_weights(const Tensors& weights) {
  impl_->check_weights(weights);
  const std::lock_guard guard(impl_->lock);
  for (const auto& [name, tensor] : weights) {
    impl_->weights[name] = tensor;
    impl_->bound.insert(name);
  }
}

int64_t GradientSession::weight_count() const {
  int64_t count = 0;
  for (const TensorInfo& info : impl_->weight_infos) count += element_count(info.dims);
  return count;
}

Tensor GradientSession::flatten(const Tensors& tensors) const {
  Tensor flat = Tensor::empty(impl_->weight_dtype(), {weight_count()});
  auto* to = static_cast<std::byte*>(flat.data());
  for (const TensorInfo& info : impl_->weight_infos) {
    const auto found = tensors.find(info.name);
    if (found == tensors.end()) {
      throw DataError({.what = "A weight's tensor is missing.",
                       .node = info.name,
                       .expected = info.text(),
                       .received = "no value of this name"});
    }
    check_type("A weight's tensor", info, found->second);
    if (found->second.nbytes() != 0) std::memcpy(to, found->second.data(), found->second.nbytes());
    to += found->second.nbytes();
  }
  return flat;
}

GradientSession::Tensors GradientSession::views(const Tensor& flat) const {
  const TensorInfo form{.name = "flat", .dtype = impl_->weight_dtype(), .dims = {weight_count()}};
  check_type("The buffer of all weights", form, flat);
  Tensors views;
  Tensor whole = flat;
  const auto owner = std::make_shared<Tensor>(flat);
  auto* from = static_cast<std::byte*>(whole.data());
  for (const TensorInfo& info : impl_->weight_infos) {
    views[info.name] = Tensor::wrap(info.dtype, info.dims, from, owner);
    from += views[info.name].nbytes();
  }
  return views;
}

}  // namespace steep
