// ArtifactSession: runs the programs of an artifact.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "artifact/graph_json.h"
#include "artifact/runnable.h"
#include "runtime/budget.h"
#include "runtime/memory.h"
#include "runtime/threads.h"
#include "steep/artifact.h"
#include "train/finite.h"
#include "train/name_suggestions.h"
#include "train/schedule.h"
#include "train/step.h"

namespace steep {
namespace {

bool is_scalar(Value v) {
  return element_count(v.type().dims()) == 1 &&
         (v.dtype() == DType::f32 || v.dtype() == DType::f64);
}

std::string describe(const Tensor& t) {
  return fmt::format("{}{}", name_of(t.dtype()), to_string(t.dims()));
}

std::string describe(std::span<const Tensor> arrays) {
  std::string all;
  for (const Tensor& t : arrays) all += (all.empty() ? "" : ", ") + describe(t);
  return all.empty() ? "nothing" : all;
}

TensorInfo info_of(const std::string& name, const Type& type) {
  return {.name = name,
          .dtype = type.dtype,
          .dims = type.dims(),
          .symbols = std::vector<std::string>(type.dims().size())};
}

/// Merges two descriptions of the same values: extents that differ become -1.
void widen(std::vector<TensorInfo>& infos, const std::vector<TensorInfo>& others) {
  if (infos.empty()) infos = others;
  const bool alike =
      std::equal(infos.begin(), infos.end(), others.begin(), others.end(),
                 [](const TensorInfo& a, const TensorInfo& b) {
                   return a.name == b.name && a.dtype == b.dtype && a.dims.size() == b.dims.size();
                 });
  if (!alike) throw_damaged("its programs differ in their inputs or outputs");
  for (size_t i = 0; i < infos.size(); ++i) {
    for (size_t a = 0; a < infos[i].dims.size(); ++a) {
      if (infos[i].dims[a] != others[i].dims[a]) infos[i].dims[a] = -1;
    }
  }
}

}  // namespace

struct ArtifactSession::Impl {
  Impl(const ByteSource& source, const Limits& bounds);

  StepResult step(std::span<const Tensor> arrays);
  std::vector<Tensor> predict(std::span<const Tensor> arrays);
  void set_weights(const std::map<std::string, Tensor>& weights);
  double rate() const { return artifact.lr * schedule_factor(artifact.schedule, artifact.steps); }
  void require_whole() const;
  std::vector<std::string> names(std::initializer_list<StateRole> roles) const;

  Limits limits;
  Artifact artifact;
  std::map<std::string, Tensor> states;  // they share the bytes of artifact.states
  std::vector<TensorInfo> inputs, predicted, outputs;
  // The error that left states of two different steps; "" if there was none.
  std::string tear_cause;
  CallLock call_lock;

 private:
  void check(const Runnable& program, const Graph& graph);
  Runnable& program_for(Purpose purpose, std::span<const Tensor> arrays);
  std::map<std::string, Tensor> backward_inputs();
  void count_steps(float more);
  void tear(const std::string& cause) { tear_cause = cause; }
  void require_finite_weights();

  std::vector<std::unique_ptr<Runnable>> programs_;
  std::shared_ptr<MemoryPool> pool_ = MemoryPool::create(limits.max_bytes);
};

ArtifactSession::Impl::Impl(const ByteSource& source, const Limits& bounds)
    : limits(bounds), artifact(read_artifact(source)) {
  for (const ArtifactState& state : artifact.states) {
    if (state.role == StateRole::count &&
        (state.tensor.dtype() != DType::f32 || state.tensor.size() != 1)) {
      throw_damaged("a count of steps has another type");
    }
    states[state.name] = state.tensor;
  }
  for (const ArtifactProgram& program : artifact.programs) {
    programs_.push_back(std::make_unique<Runnable>(program, pool_));
    check(*programs_.back(), program.graph);
  }
  if (programs_.empty()) throw_damaged("it has no program");
}

/// Checks that the inputs and outputs are those of the program's purpose.
void ArtifactSession::Impl::check(const Runnable& program, const Graph& graph) {
  const bool step = program.purpose() == Purpose::step;
  std::vector<TensorInfo> input_infos, output_infos;
  for (const Value v : program.inputs()) input_infos.push_back(info_of(v.name(), v.type()));
  widen(step ? inputs : predicted, input_infos);
  for (const Value v : graph.inputs()) {
    if (graph.input_phase(v) != Phase::backward) continue;
    const std::string& name = v.name();
    const auto fits = [&](DType dtype, const Dims& dims) {
      return v.dtype() == dtype && v.type().dims() == dims;
    };
    bool known =
        (name == kLrInput && fits(DType::f32, {})) || (name == kStepInput && fits(DType::i64, {}));
    for (const auto& [i, settings] : artifact.groups) {
      known = known || (name == fmt::format("{}{}", kGroupInput, i) &&
                        fits(DType::f64, {static_cast<int64_t>(settings.size())}));
    }
    if (!known || !step) throw_damaged("a program has the unknown input " + name);
  }
  if (!step) {
    if (!graph.updates().empty()) throw_damaged("a prediction writes to states");
    for (const Output& o : graph.outputs()) output_infos.push_back(info_of(o.name, o.value.type()));
    widen(outputs, output_infos);
    return;
  }
  const std::vector<Value> results = program.outputs();
  const size_t least = artifact.check_finite ? 2 : 1;
  if (results.size() < least || !is_scalar(results.front()) ||
      (artifact.check_finite && !is_scalar(results.back()))) {
    throw_damaged("a step has no loss");
  }
  for (const Output& o : graph.outputs()) {
    if (o.phase == Phase::backward && !is_scalar(o.value)) throw_damaged("a norm is no number");
  }
  for (const Update& u : graph.updates()) {
    const Node writer = u.value.producer();
    if (!writer || writer.phase() == Phase::forward) throw_damaged("a state is updated too early");
  }
}

Runnable& ArtifactSession::Impl::program_for(Purpose purpose, std::span<const Tensor> arrays) {
  std::string alternatives;
  for (const auto& program : programs_) {
    if (program->purpose() != purpose) continue;
    if (program->takes(arrays)) return *program;
    std::string one;
    for (const Value v : program->inputs())
      one += fmt::format("{}{} {}", one.empty() ? "" : ", ", to_string(v.type()), v.name());
    alternatives += (alternatives.empty() ? "" : "; or ") + one;
  }
  throw ShapeError(
      ErrorParts{.what = "The artifact was not written for arrays of these types.",
                 .expected = alternatives.empty() ? "an artifact that was written for such a call"
                                                  : alternatives,
                 .received = describe(arrays),
                 .remedy = "Feed one of these, or write the artifact with such a batch, too."});
}

std::map<std::string, Tensor> ArtifactSession::Impl::backward_inputs() {
  std::map<std::string, Tensor> result;
  result[std::string(kLrInput)] = Tensor::scalar(static_cast<float>(rate()));
  result[std::string(kStepInput)] = Tensor::scalar(artifact.steps + 1);
  for (const auto& [i, settings] : artifact.groups) {
    std::vector<double> now = settings;
    now[0] *= schedule_factor(artifact.schedule, artifact.steps);
    result[fmt::format("{}{}", kGroupInput, i)] =
        Tensor::from(now, {static_cast<int64_t>(now.size())});
  }
  return result;
}

void ArtifactSession::Impl::count_steps(float more) {
  for (ArtifactState& state : artifact.states) {
    if (state.role == StateRole::count) *state.tensor.data<float>() += more;
  }
}

void ArtifactSession::Impl::require_whole() const {
  if (tear_cause.empty()) return;
  throw DataError(ErrorParts{
      .what = "The weights are inconsistent: an update was cut off, so that some are of that step "
              "and some of the step before.",
      .expected = "weights of one step",
      .received = "the cause was: " + tear_cause,
      .remedy = "Open the artifact again."});
}

void ArtifactSession::Impl::require_finite_weights() {
  for (const std::string& name : names({StateRole::parameter})) {
    if (all_finite(states.at(name))) continue;
    tear(fmt::format("the update of step {} left NaN or infinity in '{}'", artifact.steps + 1,
                     name));
    throw DataError(
        ErrorParts{.what = fmt::format("The update of step {} left a weight that is not finite.",
                                       artifact.steps + 1),
                   .node = name,
                   .remedy = "Open the artifact again, and lower the learning rate."});
  }
}

StepResult ArtifactSession::Impl::step(std::span<const Tensor> arrays) {
  require_whole();
  if (artifact.steps == INT64_MAX) throw DataError("The number of steps is at its limit.");
  Runnable& program = program_for(Purpose::step, arrays);
  const std::map<std::string, Tensor> fed_later = backward_inputs();
  std::unique_ptr<Runnable::Run> run;
  StepResult result{.lr = rate()};
  result.outputs = program.forward(arrays, states, artifact.seed, artifact.run_count, &run);
  result.loss = scalar_of(result.outputs.front());
  result.outputs.erase(result.outputs.begin());
  if (artifact.check_finite) {
    result.grad_norm = scalar_of(result.outputs.back());
    result.outputs.pop_back();
  }
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    throw DataError(ErrorParts{
        .what =
            fmt::format("The {} of step {} is {}; no weight was changed.",
                        std::isfinite(result.loss) ? "gradients' norm" : "loss", artifact.steps + 1,
                        std::isfinite(result.loss) ? result.grad_norm : result.loss),
        .remedy = "Look at the data of this step, or lower the learning rate."});
  }
  bool wrote = false;
  std::vector<Tensor> later;
  count_steps(1);
  try {
    later = program.backward(*run, fed_later, &wrote);
  } catch (const std::exception& error) {
    count_steps(-1);
    if (wrote) tear(error.what());
    throw;
  }
  ++artifact.run_count;
  if (artifact.check_finite) require_finite_weights();
  result.step = ++artifact.steps;
  if (!later.empty()) result.grad_norm = scalar_of(later[0]);
  return result;
}

std::vector<Tensor> ArtifactSession::Impl::predict(std::span<const Tensor> arrays) {
  require_whole();
  std::unique_ptr<Runnable::Run> run;
  return program_for(Purpose::prediction, arrays)
      .forward(arrays, states, artifact.seed, artifact.run_count, &run);
}

std::vector<std::string> ArtifactSession::Impl::names(
    std::initializer_list<StateRole> roles) const {
  std::vector<std::string> names;
  for (const ArtifactState& state : artifact.states) {
    if (std::find(roles.begin(), roles.end(), state.role) != roles.end())
      names.push_back(state.name);
  }
  return names;
}

void ArtifactSession::Impl::set_weights(const std::map<std::string, Tensor>& weights) {
  const std::vector<std::string> there = names({StateRole::parameter, StateRole::statistic});
  for (const auto& [name, value] : weights) {
    if (std::find(there.begin(), there.end(), name) == there.end()) {
      throw ModelError(ErrorParts{.what = "There is no such trained parameter.",
                                  .node = name,
                                  .expected = nearest_names(name, there),
                                  .received = name});
    }
    const Tensor& state = states.at(name);
    if (value.dtype() != state.dtype() || value.dims() != state.dims()) {
      throw ShapeError(ErrorParts{.what = "A trained parameter has another type.",
                                  .node = name,
                                  .expected = describe(state),
                                  .received = describe(value)});
    }
  }
  for (const auto& [name, value] : weights) {
    Tensor& state = states.at(name);
    if (state.nbytes() > 0) std::memmove(state.data(), value.data(), state.nbytes());
  }
}

namespace {

/// Runs f() as a call of a session: within the limits, with std::bad_alloc as OutOfMemoryError.
template <typename F>
decltype(auto) called(const Limits& limits, F&& f) {
  const EngineCall call;
  const Budget budget(limits);
  try {
    return f();
  } catch (const std::bad_alloc&) {
    throw_out_of_memory();
  }
}

}  // namespace

ArtifactSession::ArtifactSession(const std::filesystem::path& path, const Limits& limits)
    : impl_(called(limits, [&] { return std::make_unique<Impl>(FileSource(path), limits); })) {}
ArtifactSession::ArtifactSession(std::span<const std::byte> artifact, const Limits& limits)
    : impl_(called(limits, [&] {
        return std::make_unique<Impl>(MemorySource(artifact, "the artifact"), limits);
      })) {}
ArtifactSession::~ArtifactSession() = default;
ArtifactSession::ArtifactSession(ArtifactSession&&) noexcept = default;
ArtifactSession& ArtifactSession::operator=(ArtifactSession&&) noexcept = default;

StepResult ArtifactSession::step(std::span<const Tensor> inputs) {
  const std::lock_guard lock(impl_->call_lock);
  return called(impl_->limits, [&] { return impl_->step(inputs); });
}

std::vector<Tensor> ArtifactSession::predict(std::span<const Tensor> inputs) {
  const std::lock_guard lock(impl_->call_lock);
  return called(impl_->limits, [&] { return impl_->predict(inputs); });
}

const std::vector<TensorInfo>& ArtifactSession::input_info() const { return impl_->inputs; }
const std::vector<TensorInfo>& ArtifactSession::prediction_info() const { return impl_->predicted; }
const std::vector<TensorInfo>& ArtifactSession::output_info() const { return impl_->outputs; }
std::vector<std::string> ArtifactSession::parameter_names() const {
  return impl_->names({StateRole::parameter});
}

std::map<std::string, Tensor> ArtifactSession::weights() const {
  const std::lock_guard lock(impl_->call_lock);
  return called(impl_->limits, [&] {
    impl_->require_whole();
    std::map<std::string, Tensor> copies;
    for (const std::string& name : impl_->names({StateRole::parameter}))
      copies[name] = impl_->states.at(name).clone();
    return copies;
  });
}

void ArtifactSession::set_weights(const std::map<std::string, Tensor>& weights) {
  const std::lock_guard lock(impl_->call_lock);
  called(impl_->limits, [&] {
    impl_->require_whole();
    impl_->set_weights(weights);
  });
}

int64_t ArtifactSession::step_count() const {
  const std::lock_guard lock(impl_->call_lock);
  return impl_->artifact.steps;
}
double ArtifactSession::lr() const {
  const std::lock_guard lock(impl_->call_lock);
  return impl_->rate();
}
void ArtifactSession::set_lr(double lr) {
  const std::lock_guard lock(impl_->call_lock);
  check_rate(lr);
  impl_->artifact.lr = lr;
}

void ArtifactSession::save(const std::filesystem::path& path) const {
  const std::lock_guard lock(impl_->call_lock);
  called(impl_->limits, [&] {
    impl_->require_whole();
    write_artifact(path, impl_->artifact);
  });
}

}  // namespace steep
