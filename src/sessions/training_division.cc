// A TrainingSession that keeps the optimizer's states of some parameters only, since other
// processes keep those of the rest (parallel/divided_states.cc).
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "runtime/counted.h"
#include "runtime/heap.h"
#include "runtime/memory.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/finite.h"
#include "train/name_suggestions.h"
#include "train/optimizer.h"

namespace steep {

void TrainingSession::Impl::require_undivided(const char* call) const {
  if (!held) return;
  throw DataError(ErrorParts{
      .what = fmt::format("{} needs the optimizer's states of all parameters.", call),
      .expected = "a session that keeps all of them",
      .received = fmt::format("those of {} of {}", held->size(),
                              counted(model.parameters.size(), "parameter")),
      .remedy = "Call DataParallel's functions, or do not divide the states (zero = 0)."});
}

void TrainingSession::Impl::require_here(const std::string& name) const {
  if (elsewhere.count(name) == 0) return;
  throw DataError(ErrorParts{.what = "Another process keeps this state.",
                             .node = name,
                             .expected = "a state of a parameter of hold_states_of()",
                             .received = name,
                             .remedy = "Save or load a checkpoint, which has the states of all."});
}

const Tensor& TrainingSession::Impl::state_type(const std::string& name) const {
  const auto found = elsewhere.find(name);
  return found != elsewhere.end() ? found->second : programs.states.at(name);
}

std::vector<TensorInfo> TrainingSession::Impl::states_of(const std::string& parameter) const {
  std::vector<TensorInfo> infos;
  const auto add = [&](const std::string& name) {
    const Tensor& type = state_type(name);
    infos.push_back({.name = name, .dtype = type.dtype(), .dims = type.dims()});
  };
  for (const std::string& name : model.moments) {
    if (model.moment_owners.at(name) != parameter) continue;
    add(name);
    const std::string scale = scale_name(name);
    if (std::find(model.scales.begin(), model.scales.end(), scale) != model.scales.end())
      add(scale);
  }
  return infos;
}

std::vector<std::string> TrainingSession::Impl::summed() const {
  if (!receiver) return model.parameters;
  return {held->begin(), held->end()};
}

void TrainingSession::Impl::hold_states_of(const std::vector<std::string>& parameters,
                                           Receive receive) try {
  require_whole();
  require_undivided("hold_states_of()");
  require_applied("hold_states_of()");
  if (options.ema_decay > 0) {
    throw ModelError(
        ErrorParts{.what = "Moving averages of weights cannot be divided among processes.",
                   .node = "ema_decay",
                   .expected = "no moving averages, or an optimizer whose states are not divided",
                   .received = fmt::format("{}", options.ema_decay),
                   .remedy = "Leave out ema_decay (--ema), or do not divide the states."});
  }
  std::set<std::string> keeps;
  for (const std::string& name : parameters) {
    const auto& all = model.parameters;
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      throw ModelError(ErrorParts{.what = "There is no such trained parameter.",
                                  .node = name,
                                  .expected = nearest_names(name, all),
                                  .received = name});
    }
    keeps.insert(name);
  }
  // The program of a whole step holds all states; that of a part of a step takes its place.
  const uint64_t runs = program->run_count();
  if (receive) hand_over(keeps, std::move(receive));
  run_parts(runs);
  programs.erase(Kind::step);
  programs.erase(Kind::application);
  for (const std::string& parameter : model.parameters) {
    if (keeps.count(parameter) != 0) continue;
    for (const TensorInfo& info : states_of(parameter)) {
      elsewhere[info.name] = Tensor::wrap(info.dtype, info.dims, nullptr, nullptr);
      programs.states.erase(info.name);
      programs.offloaded.erase(info.name);
    }
  }
  held = std::move(keeps);
  loaded_hash.clear();
  trim_heap();  // of which malloc would keep what was freed here
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

/// Lets accumulation() hand gradients over, and frees the sums of parameters that others keep.
void TrainingSession::Impl::hand_over(const std::set<std::string>& keeps, Receive receive) {
  receiver = std::make_unique<Receiver>(
      [this, receive = std::move(receive)](int64_t index, const void* data) {
        const std::string& name = model.parameters[static_cast<size_t>(index)];
        const Tensor& weight = programs.states.at(name);
        const DType dtype = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
        try {
          receive(name, Tensor::wrap(dtype, weight.dims(), const_cast<void*>(data), nullptr));
        } catch (...) {  // the error that crosses the provider's boundary is another one
          receiver_error = std::current_exception();
          throw;
        }
      });
  programs.erase(Kind::accumulation);
  for (const std::string& name : model.parameters) {
    const Tensor& weight = programs.states.at(name);
    const DType dtype = weight.dtype() == DType::f64 ? DType::f64 : DType::f32;
    programs.states.erase(accumulator_name(name));
    if (keeps.count(name) != 0)
      programs.states[accumulator_name(name)] = Tensor::zeros(dtype, weight.dims());
  }
}

/// Makes the program of a part that of a step, after so many runs.
void TrainingSession::Impl::run_parts(uint64_t runs) {
  program = &accumulation();
  program->set_run_count(runs);
  program->set_seed(options.seed);
}

Delivery TrainingSession::Impl::delivery() const {
  if (receiver) return {.receiver = receiver->number(), .sums = false};
  // Another device would copy each sum to the host, and a loaded library cannot call the receiver.
  const Devices& devices = programs.options().devices;
  const bool here = devices.only_host() && devices.host().linked();
  return {.receiver = announcer && here ? announcer->number() : 0};
}

void TrainingSession::Impl::on_sum(Ready ready) try {
  require_applied("on_sum()");
  if (receiver) throw InternalError("Gradients are handed over, so that there are no sums.");
  sum_ready = std::move(ready);
  if (announcer) return;
  announcer = std::make_unique<Receiver>([this](int64_t index, const void* data) {
    const std::string& name = model.parameters[static_cast<size_t>(index)];
    // A plan may write the sum elsewhere first, and copy it at the end.
    if (data == programs.states.at(accumulator_name(name)).data()) sum_ready(name);
  });
  const uint64_t runs = program->run_count();
  programs.erase(Kind::accumulation);
  if (held) run_parts(runs);
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

/// As apply(), where there are more processes than parameters.
StepResult TrainingSession::Impl::apply_nothing() {
  const Accumulated sums = std::exchange(accumulated, {});
  count_steps(1);
  program->set_run_count(program->run_count() + 1);
  StepResult result{.loss = without_nan_sign(sums.loss / sums.weight), .lr = rate()};
  result.loss_scale = loss_scale;
  return result;
}

StepResult TrainingSession::Impl::apply_held_gradients(double norm) try {
  require_whole();
  if (!held) throw InternalError("apply_held_gradients() was called before hold_states_of().");
  require_gradients();
  require_step();
  StepResult result;
  try {
    if (held->empty()) {
      result = apply_nothing();
    } else {
      const Tensor norms[] = {Tensor::scalar(static_cast<float>(norm))};
      result = apply(programs.get(Kind::application,
                                  [&] { return application_graph(model, options, &*held); }),
                     norms);
    }
  } catch (const std::exception& error) {
    tear(error.what());  // other processes may have made their updates
    throw;
  }
  tear("the new weights of other processes did not arrive");
  incomplete = true;
  if (wants_norm(options)) result.grad_norm = norm;
  result.step = steps + 1;
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void TrainingSession::Impl::complete_update() {
  if (!incomplete || !torn) {
    throw DataError(ErrorParts{.what = "There is no update to complete.",
                               .expected = "apply_held_gradients() before complete_update()",
                               .received = "none since the last complete update"});
  }
  incomplete = torn = false;
  if (options.check_finite) require_finite();
  ++steps;
  if (scales_loss(options)) adapt_loss_scale(false);
}

std::map<std::string, Tensor> TrainingSession::Impl::with_others(
    std::map<std::string, Tensor> others) const {
  for (const auto& [name, type] : elsewhere) {
    const auto found = others.find(name);
    const bool fits = found != others.end() && found->second.dtype() == type.dtype() &&
                      found->second.dims() == type.dims();
    if (fits) continue;
    throw DataError(
        ErrorParts{.what = "A checkpoint needs the states that other processes keep.",
                   .node = name,
                   .expected = fmt::format("{}{}", name_of(type.dtype()), to_string(type.dims())),
                   .received = found == others.end() ? "no value of this name" : "another type",
                   .remedy = "Call DataParallel::save_checkpoint() on every rank."});
  }
  for (const auto& [name, value] : others) {
    if (elsewhere.count(name) != 0) continue;
    throw DataError(ErrorParts{.what = "No other process keeps this state.",
                               .node = name,
                               .expected = "only states that this session does not keep",
                               .received = name});
  }
  others.merge(shared(kept_states()));
  return others;
}

void TrainingSession::hold_states_of(const std::vector<std::string>& parameters, Receive receive) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->hold_states_of(parameters, std::move(receive));
}
void TrainingSession::on_sum(Ready ready) {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->on_sum(std::move(ready));
}
std::optional<std::vector<std::string>> TrainingSession::held_parameters() const {
  const std::lock_guard lock(impl_->programs.call_lock);
  if (!impl_->held) return {};
  return std::vector<std::string>(impl_->held->begin(), impl_->held->end());
}
std::vector<TensorInfo> TrainingSession::states_of(const std::string& parameter) const {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->states_of(parameter);
}
StepResult TrainingSession::apply_held_gradients(double norm) {
  const std::lock_guard lock(impl_->programs.call_lock);
  return impl_->apply_held_gradients(norm);
}
void TrainingSession::complete_update() {
  const std::lock_guard lock(impl_->programs.call_lock);
  impl_->complete_update();
}

}  // namespace steep
