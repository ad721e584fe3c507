// A step in several parts: gradients that are added up, and the update by their mean.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "runtime/counted.h"
#include "sessions/training_impl.h"
#include "steep/error.h"
#include "train/finite.h"
#include "train/schedule.h"
#include "train/step.h"

namespace steep {

Program& TrainingSession::Impl::accumulation() {
  return programs.get(Kind::accumulation, [&] {
    Graph graph = accumulation_graph(model, options, &weighs_, delivery());
    for (Value state : graph.states()) {
      Tensor& bytes = programs.states[state.name()];
      if (!bytes.defined()) bytes = Tensor::zeros(state.dtype(), state.type().dims());
    }
    return graph;
  });
}

Program& TrainingSession::Impl::begin_accumulation() {
  Program& adding = accumulation();
  for (const std::string& name : model.parameters) {
    if (accumulated.parts > 0 || receiver) break;
    Tensor& sum = programs.states.at(accumulator_name(name));
    if (sum.nbytes() > 0) std::memset(sum.data(), 0, sum.nbytes());
  }
  return adding;
}

AccumulatedGradients TrainingSession::Impl::accumulated_gradients() try {
  announcer ? accumulation() : begin_accumulation();
  AccumulatedGradients result{.parts = accumulated.parts,
                              .weight = accumulated.weight,
                              .weighs = weighs_,
                              .loss = accumulated.loss};
  for (const std::string& name : summed()) {
    result.sums[name] = programs.states.at(accumulator_name(name));
  }
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void TrainingSession::Impl::set_accumulated(double weight, double loss) try {
  if (!(weight > 0) || std::isinf(weight)) {
    throw DataError(ErrorParts{.what = "The weight of accumulated gradients is out of range.",
                               .expected = "a positive, finite number",
                               .received = fmt::format("{}", weight)});
  }
  accumulation();  // not begin_accumulation(), which zeroes the sums that the caller has written
  accumulated = {.parts = std::max<int64_t>(accumulated.parts, 1), .weight = weight, .loss = loss};
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

StepResult TrainingSession::Impl::accumulate(std::span<const Tensor> arrays) try {
  require_whole();
  std::vector<Tensor> storage;
  const std::span<const Tensor> feed = adopt(arrays, &storage);
  Program& adding = begin_accumulation();
  const uint64_t run = program->run_count();
  adding.set_seed(options.seed);
  adding.set_run_count(run);
  write_loss_scale();
  ForwardResult forward = adding.forward(feed);
  double weight = 1;
  if (weighs_) {  // the weight is not always last: a norm may follow
    const auto at =
        forward.outputs.begin() + static_cast<ptrdiff_t>(1 + options.step_outputs.size());
    weight = read_scalar(*at);
    forward.outputs.erase(at);
  }
  StepResult result;
  if (weight == 0) {  // no label counts: loss and gradients are 0 / 0, and are not added
    forward.pending.reset();
    forward.outputs.resize(1 + options.step_outputs.size());
    take_step_outputs(forward, &result);
    result.loss = std::nan("");
    result.lr = rate();
    result.step = steps;
    result.loss_scale = loss_scale;
    program->set_run_count(run + 1);
    accumulated.unlabelled += 1;
    return result;
  }
  const bool fits = inspect(forward, feed, run, &result);
  take_step_outputs(forward, &result);
  if (!fits) {
    program->set_run_count(run + 1);
    accumulated.overflowed += 1;
    accumulated.overflowed_loss += result.loss;
    return result;
  }
  try {
    adding.backward(std::move(forward.pending), {});
  } catch (const std::exception& error) {
    if (adding.wrote_states()) {  // some sums include the gradients of this part, others do not
      accumulated = {.lost = accumulated.lost + accumulated.parts};
      if (!model.statistics.empty() && !receiver_error) tear(error.what());
    }
    if (receiver_error) std::rethrow_exception(std::exchange(receiver_error, nullptr));
    throw;
  }
  program->set_run_count(run + 1);
  accumulated.parts += 1;
  accumulated.weight += weight;
  accumulated.loss += result.loss * weight;
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

void TrainingSession::Impl::require_gradients() const {
  if (accumulated.lost > 0) {
    throw DataError(ErrorParts{
        .what = "An error in a part has spoilt the sums of the parts before it; no weight was "
                "changed.",
        .expected = "the gradients of all parts",
        .received =
            fmt::format("{} lost, {} since", counted(accumulated.lost, "part"), accumulated.parts),
        .remedy = "Call drop_gradients(), and accumulate all parts again."});
  }
  if (accumulated.parts > 0) return;
  const int64_t unlabelled = accumulated.unlabelled;
  throw DataError(ErrorParts{
      .what = "There are no accumulated gradients to apply.",
      .expected = "gradients of at least one step",
      .received =
          unlabelled == 0 ? "none" : fmt::format("{} without labels", counted(unlabelled, "part")),
      .remedy = unlabelled == 0 ? "Call accumulate() first: step(…, accumulate=True)."
                                : "No label of these parts counts: leave out such batches."});
}

StepResult TrainingSession::Impl::apply(Program& updating, std::span<const Tensor> more) {
  const uint64_t run = program->run_count();
  updating.set_seed(options.seed);
  updating.set_run_count(run);
  std::vector<Tensor> feed = backward_inputs();
  feed.push_back(Tensor::scalar(static_cast<float>(1 / accumulated.weight)));
  feed.insert(feed.end(), more.begin(), more.end());
  StepResult result{.loss = without_nan_sign(accumulated.loss / accumulated.weight), .lr = rate()};
  result.loss_scale = loss_scale;
  ForwardResult forward = updating.forward({});
  const Accumulated backup = std::exchange(accumulated, {});
  std::vector<Tensor> backward;
  try {
    backward = update(updating, std::move(forward.pending), feed);
  } catch (...) {
    if (!updating.wrote_states()) accumulated = backup;
    throw;
  }
  program->set_run_count(run + 1);
  if (!backward.empty()) result.grad_norm = read_scalar(backward[0]);
  return result;
}

StepResult TrainingSession::Impl::apply_gradients() try {
  require_whole();
  require_undivided("apply_gradients()");
  if (accumulated.parts == 0 && accumulated.overflowed > 0 &&
      accumulated.lost == 0) {  // as step(), which skips
    const Accumulated left_out = std::exchange(accumulated, {});
    return {.loss = left_out.overflowed_loss / static_cast<double>(left_out.overflowed),
            .lr = rate(),
            .step = steps,
            .skipped = true,
            .loss_scale = loss_scale};
  }
  require_gradients();
  require_step();
  StepResult result =
      apply(programs.get(Kind::application, [&] { return application_graph(model, options); }), {});
  if (options.check_finite) require_finite();
  result.step = ++steps;
  if (scales_loss(options)) adapt_loss_scale(false);
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory();
}

}  // namespace steep
