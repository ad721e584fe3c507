#include "train/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "autodiff/gradient.h"
#include "data/convert.h"
#include "ir/compact.h"
#include "ops/defs/batch_norm.h"
#include "ops/wide.h"
#include "passes/pipeline.h"
#include "steep/error.h"
#include "train/check_options.h"
#include "train/custom_optimizer.h"
#include "train/exporter_ties.h"
#include "train/loss.h"
#include "train/name_suggestions.h"
#include "train/optimizer.h"
#include "train/packed_weights.h"
#include "train/parameters.h"
#include "train/schedule.h"
#include "train/updates.h"
#include "train/weight.h"

namespace steep {
namespace {

std::vector<Value> parameter_values(const TrainingModel& model, const Graph& graph) {
  std::vector<Value> values;
  for (const std::string& name : model.parameters) values.push_back(graph.find(name));
  return values;
}

std::set<std::string> disabled(const TrainingOptions& options) {
  return {options.disabled_passes.begin(), options.disabled_passes.end()};
}

/// The host reads the loss as float or double.
Value readable(Value loss) {
  return loss.dtype() == DType::f32 || loss.dtype() == DType::f64 ? loss : cast(loss, DType::f32);
}

/// `seed`: the gradient of the loss itself; null means 1.
std::vector<Value> gradients_of(const TrainingModel& model, Graph& graph, Value loss, Phase phase,
                                Value seed = {}) {
  const Value outputs[] = {loss};
  const Value seeds[] = {seed};
  const std::vector<Value> parameters = parameter_values(model, graph);
  std::vector<Value> gradients = add_gradients(graph, outputs, seeds, parameters, phase);
  for (size_t i = 0; i < gradients.size(); ++i) {
    // The path is differentiable, but every gradient rule on it gives no gradient.
    if (!gradients[i]) gradients[i] = zeros_like(parameters[i]);
  }
  return gradients;
}

/// The gradient of the scaled loss, and the factor that removes the scale from other gradients.
std::pair<Value, Value> scale_loss(Graph& graph, Value loss) {
  const Graph::Scope scope(graph, Phase::forward, "loss_scale");
  const Value scale = graph.add_state(std::string(kLossScaleState), {DType::f32, Shape{}});
  return {zeros_like(loss) + cast_like(scale, loss), 1.0 / scale};
}

/// The group that names a parameter, by its name.
std::unordered_map<std::string, const ParameterGroup*> groups_by_name(
    const TrainingOptions& options) {
  std::unordered_map<std::string, const ParameterGroup*> groups;
  for (const ParameterGroup& group : options.groups) {
    for (const std::string& name : group.names) groups[name] = &group;
  }
  return groups;
}

/// The first stream of random numbers for stochastic rounding. Streams count downwards from it;
/// those of the model itself count upwards from 0.
constexpr int64_t kRoundingStreams = -1;
/// The same for moments that are kept in fewer bits.
constexpr int64_t kMomentStreams = kRoundingStreams - (int64_t{1} << 30);

/// The optimizer of one parameter, with the values of its rate and step.
struct Rate {
  OptimizerOptions options;
  Value lr, step;
};

/// One rate per parameter. Adds the inputs: the learning rate (multiplied for some groups), the
/// settings of groups with an optimizer of their own, and the step. Also adds the states that count
/// the steps of parameters in such groups.
std::vector<Rate> rates_for(const TrainingModel& model, const TrainingOptions& options,
                            Graph& graph) {
  Graph::Scope scope(graph, Phase::backward, "lr");
  const Value lr = graph.add_input(std::string(kLrInput), {DType::f32, Shape{}}, Phase::backward);
  std::vector<Value> settings;
  for (const ParameterGroup& group : options.groups) {
    if (!group.optimizer) {
      settings.emplace_back();
      continue;
    }
    const auto extent = static_cast<int64_t>(settings_of(*group.optimizer).size());
    settings.push_back(graph.add_input(fmt::format("{}{}", kGroupInput, settings.size()),
                                       {DType::f64, Shape{extent}}, Phase::backward));
  }
  const Value step =
      graph.add_input(std::string(kStepInput), {DType::i64, Shape{}}, Phase::backward);
  const auto groups = groups_by_name(options);
  std::vector<Rate> rates;
  for (const std::string& name : model.parameters) {
    Rate rate{options.optimizer, lr, step};
    const auto found = groups.find(name);
    if (found != groups.end() && found->second->optimizer) {
      rate.options = *found->second->optimizer;
      rate.lr = settings[static_cast<size_t>(found->second - options.groups.data())];
      rate.step = add_optimizer_state(graph, count_name(name), {DType::f32, Shape{}});
    } else if (found != groups.end()) {
      const ParameterGroup& group = *found->second;
      rate.lr = group.lr_multiplier == 1 ? lr : lr * group.lr_multiplier;
      rate.options.weight_decay = group.weight_decay.value_or(options.optimizer.weight_decay);
    }
    rates.push_back(std::move(rate));
  }
  return rates;
}

/// The initializers that hold running statistics of training normalisations.
std::vector<Value> choose_statistics(const Graph& graph, std::span<const std::string> initializers,
                                     const std::vector<std::string>& parameters) {
  std::unordered_set<std::string> rest(initializers.begin(), initializers.end());
  for (const std::string& name : parameters) rest.erase(name);
  std::vector<Value> result;
  for (Node n : graph.nodes()) {
    if (!trains_statistics(n)) continue;
    for (Value v : {n.input(3), n.input(4)}) {
      if (v.role() == Role::constant && rest.erase(v.name()) != 0) result.push_back(v);
    }
  }
  return result;
}

/// Rewrites each training normalisation as one that uses the statistics of the batch, and updates
/// its running statistics. Like the updates of weights, these run in the backward phase.
/// Initializers that are keys of `updates` are not updated here.
void update_statistics(Graph& graph, const std::map<std::string, std::string>& updates) {
  for (Node n : graph.nodes()) {
    if (!trains_statistics(n)) continue;
    Graph::Scope scope(graph, n.phase(), n.name());
    // Statistics in 16 bits would overflow.
    const Value x = is_half(n.input(0).dtype()) ? cast(n.input(0), DType::f32) : n.input(0);
    const BatchNorm now =
        batch_norm(x, cast_like(n.input(1), x), cast_like(n.input(2), x), real_of(n, "epsilon"));
    const double momentum = real_of(n, "momentum");
    auto running = [&](Value before, Value batch) {
      return running_statistic(before, batch, x, momentum);
    };
    auto update = [&](Value before, Value batch, Value after) {
      if (after) graph.replace_uses(after, running(before, batch));
      if (before.role() != Role::state || updates.count(before.name()) != 0) return;
      Graph::Scope later(graph, Phase::backward, n.name());
      graph.add_update(before, running(before, batch));
    };
    update(n.input(3), now.mean, n.output(1));
    update(n.input(4), averaged_variance(n, now.variance, x), n.output(2));
    graph.replace_uses(n.output(0), cast_like(now.y, n.output(0)));
    graph.erase(n);
  }
}

}  // namespace

void use_statistics(Graph& graph) {
  for (Node n : graph.nodes()) {
    if (!trains_statistics(n)) continue;
    Graph::Scope scope(graph, n.phase(), n.name());
    Attrs attrs = n.attrs();
    attrs.erase("training_mode");
    const Value y = apply("BatchNormalization",
                          {n.input(0), n.input(1), n.input(2), n.input(3), n.input(4)}, attrs);
    graph.replace_uses(n.output(0), y);
    if (n.output(1)) graph.replace_uses(n.output(1), n.input(3));
    if (n.output(2)) graph.replace_uses(n.output(2), n.input(4));
    graph.erase(n);
  }
}

bool trains_statistics(Node n) {
  return n.op() == "BatchNormalization" && integer_of(n, "training_mode") != 0;
}

void remove_dropout(Graph& graph) {
  for (Node n : graph.nodes()) {
    if (n.op() == "steep.Dropout") graph.replace_uses(n.output(0), n.input(0));
    if (n.op() == "steep.DropoutMask") {
      graph.replace_uses(n.output(0), cast(zeros_like(n.input(0)) + 1.0, DType::boolean));
    }
  }
}

bool scales_loss(const TrainingOptions& options) { return options.precision == "fp16"; }

namespace {

/// Chooses the trained parameters, and fills the fields of `model` that depend on the loss.
std::vector<std::string> choose_trained(const Graph& graph,
                                        std::span<const std::string> initializers,
                                        std::span<const std::string> constants,
                                        std::span<const LeftOut> inside,
                                        const TrainingOptions& options, TrainingModel& model) {
  Graph with_loss = graph;
  const AttachedLoss loss_parts = attach_loss(with_loss, options);
  model.label_added = loss_parts.label_added;
  if (options.loss.empty()) model.loss_output = find_output(graph, options).name;
  if (std::string doubt = doubts(graph, options); !doubt.empty())
    model.warnings.push_back(std::move(doubt));
  const Value losses[] = {loss_parts.loss};
  TrainingOptions own = options;
  for (const auto& update : options.updates) own.frozen.push_back(update.first);
  ChosenParameters choice =
      choose_parameters(with_loss, losses, initializers, constants, own, inside);
  model.left_out = std::move(choice.left_out);
  add_doubtful_ties(with_loss, choice.parameters, model.warnings);
  std::vector<std::string> names;
  for (Value v : choice.parameters) names.push_back(v.name());
  return names;
}

/// Turns constants of a graph into states, and collects their initial values.
class States {
 public:
  States(Graph& graph, const std::map<std::string, Tensor>& values,
         std::map<std::string, Tensor>* initial)
      : graph_(graph), values_(values), initial_(*initial) {}

  void add(Value v) {
    // A tensor without another owner needs no copy.
    const bool own = values_.count(v.name()) != 0 || v.tensor()->owner().use_count() == 1;
    add(v, own ? *v.tensor() : v.tensor()->clone());
  }
  void add(Value v, const Tensor& value) {
    const Type type = v.type();
    initial_[v.name()] = value;
    graph_.make_state(v);
    graph_.set_tensor(v, Tensor());
    graph_.set_type(v, type);
  }

  /// Adds a parameter, the moments of its optimizer, and its moving average.
  void add_trained(Value v, const OptimizerOptions& optimizer, const TrainingOptions& options,
                   TrainingModel& model) {
    const std::string name = v.name();
    add(v);
    std::vector<std::string>& names_of_moments = model.moments;
    std::vector<Moment> moments = moments_of(optimizer, v.type());
    if (options.master_weights && is_half(v.dtype())) moments.push_back({.kind = kMaster});
    for (const Moment& moment : moments) {
      names_of_moments.push_back(moment_name(moment.kind, name));
      model.moment_owners[names_of_moments.back()] = name;
      if (moment.never_negative) model.never_negative.insert(names_of_moments.back());
      initial_[names_of_moments.back()] = initial_of(moment, v.type());
      // Scales of 0 stand for zeros, which a session gives them.
      if (moment.has_scales()) model.scales.push_back(scale_name(names_of_moments.back()));
    }
    if (!(options.ema_decay > 0)) return;
    const Tensor& weight = initial_.at(name);
    const DType dtype = update_dtype(v.type());
    names_of_moments.push_back(moment_name(kAverage, name));
    model.moment_owners[names_of_moments.back()] = name;
    initial_[names_of_moments.back()] =
        weight.dtype() == dtype ? weight.clone() : convert(weight, dtype, name);
  }

 private:
  Graph& graph_;
  const std::map<std::string, Tensor>& values_;
  std::map<std::string, Tensor>& initial_;
};

}  // namespace

TrainingModel prepare_model(Graph graph, std::span<const std::string> initializers,
                            std::span<const std::string> constants, std::span<const LeftOut> inside,
                            const TrainingOptions& options,
                            const std::map<std::string, Tensor>& values,
                            const std::map<std::string, Tensor>& places,
                            std::map<std::string, Tensor>* initial) {
  check_options(options);
  offer_output(graph, options);
  TrainingModel model;
  model.quantised = train_quantised(graph, initializers, constants, options);
  std::vector<std::string> names =
      choose_trained(graph, initializers, constants, inside, options, model);
  keep_only(model.quantised, names);
  States states(graph, values, initial);
  for (Value v : choose_statistics(graph, initializers, names)) {
    model.statistics.push_back(v.name());
    states.add(v);
  }
  check_updates(graph, initializers, options);
  for (const auto& update : options.updates) {
    const Value v = graph.find(update.first);
    model.statistics.push_back(v.name());
    states.add(v);
  }
  for (Value v : std::vector<Value>(graph.states())) {  // those that no update writes
    if (v.tensor() == nullptr || !v.tensor()->defined()) continue;
    const auto place = places.find(v.name());
    place == places.end() ? states.add(stay_packed(v)) : states.add(stay_on_disk(v), place->second);
  }
  const auto groups = groups_by_name(options);
  std::vector<std::pair<Value, const OptimizerOptions*>> trained;
  for (const std::string& name : names) {
    const auto found = groups.find(name);
    const bool own = found != groups.end() && found->second->optimizer;
    if (own) model.counts.push_back(count_name(name));
    trained.emplace_back(graph.find(name), own ? &*found->second->optimizer : &options.optimizer);
  }
  check_ranks(trained);
  for (const auto& [v, optimizer] : trained) states.add_trained(v, *optimizer, options, model);
  run_early_pass(graph, "recognise", disabled(options));
  model.parameters = std::move(names);
  model.graph = compacted(graph);  // it lives as long as the session
  return model;
}

namespace {

constexpr const char* kLossWeight = "loss_weight";

/// Adds to a step: updates of statistics, the loss, and TrainingOptions::updates. Outputs: loss,
/// then step_outputs, then, with `weigh`, loss_weight() if there is one.
void begin_step(Graph& graph, const TrainingOptions& options, bool weigh) {
  update_statistics(graph, options.updates);
  const AttachedLoss loss_parts = attach_loss(graph, options);
  add_updates(graph, options);
  std::vector<Output> outputs{{"loss", readable(loss_parts.loss)}};
  for (const std::string& name : options.step_outputs) {
    outputs.push_back({name, output_named(graph, name)});
  }
  graph.set_outputs(std::move(outputs));
  if (weigh) {
    const Graph::Scope scope(graph, Phase::forward, kLossWeight);
    if (Value weight = loss_weight(loss_parts.mean))
      graph.add_output(kLossWeight, readable(weight));
  }
  run_early_pass(graph, "compute_read_rows", disabled(options));
}

/// The factor for all gradients: `scale` (null: 1) times the factor of clipping by the norm.
Value clipped(Graph& graph, Value norm, Value scale, double clip_norm) {
  if (clip_norm <= 0) return scale;
  const Value clip = apply("Min", {scalar(graph, 1, DType::f32), clip_norm / (norm + 1e-6)});
  return scale ? scale * clip : clip;
}

/// The gradient times `scale` (null: 1), bounded to [-bound, bound], in the precision of the
/// weight's update.
Value bounded(Value gradient, Value scale, const Type& weight, double bound) {
  gradient = cast(gradient, update_dtype(weight));
  if (scale) gradient = gradient * cast_like(scale, gradient);
  Graph& g = gradient.graph();
  const DType dtype = gradient.dtype();
  return apply("Clip", {gradient, scalar(g, -bound, dtype), scalar(g, bound, dtype)});
}

/// Adds the moving average of a weight as a state, and its update by the updated weight.
void average(Value weight, double decay) {
  Graph& graph = weight.graph();
  const Type type{update_dtype(weight.type()), weight.type().shape};
  const Value before = add_optimizer_state(graph, moment_name(kAverage, weight.name()), type);
  const auto& updates = graph.updates();
  const auto entry = std::find_if(updates.begin(), updates.end(),
                                  [&](const Update& u) { return u.state == weight; });
  const Value now = cast(entry->value, type.dtype);
  graph.add_update(before, before * decay + now * (1 - decay));
}

/// `gradients`: of all parameters; null where another process makes the update.
void add_parameter_updates(Graph& graph, const TrainingModel& model, const TrainingOptions& options,
                           const std::vector<Value>& gradients, const std::vector<Rate>& rates,
                           Value scale) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i]) continue;
    Graph::Scope scope(graph, Phase::backward, "update/" + model.parameters[i]);
    const Halves halves{options.master_weights, options.stochastic_rounding,
                        kRoundingStreams - static_cast<int64_t>(i),
                        kMomentStreams - static_cast<int64_t>(i)};
    const Value weight = graph.find(model.parameters[i]);
    const bool bounds = options.clip_value > 0;
    const Value gradient =
        bounds ? bounded(gradients[i], scale, weight.type(), options.clip_value) : gradients[i];
    add_update(weight, {gradient, rates[i].lr, rates[i].step, bounds ? Value() : scale},
               rates[i].options, halves);
    if (options.ema_decay > 0) average(weight, options.ema_decay);
  }
}

}  // namespace

Graph step_graph(const TrainingModel& model, const TrainingOptions& options) {
  Graph graph = model.graph;
  const bool scaled = scales_loss(options), look_first = options.check_finite || scaled;
  begin_step(graph, options, false);
  const Value loss = graph.outputs()[0].value;
  const Phase gradient_phase = look_first ? Phase::forward : Phase::backward;
  // Added before the gradients, so that no update has to wait for its rate.
  const std::vector<Rate> rates = rates_for(model, options, graph);
  Value seed, scale;  // scale: the factor of the gradients in the update
  if (scaled) std::tie(seed, scale) = scale_loss(graph, loss);
  const std::vector<Value> gradients = gradients_of(model, graph, loss, gradient_phase, seed);
  if (wants_norm(options)) {
    Graph::Scope scope(graph, gradient_phase, "clip");
    Value norm = steep::apply("steep.GlobalNorm", std::span<const Value>(gradients));
    if (scaled) norm = norm * scale;
    graph.add_output("grad_norm", norm, gradient_phase);
    scale = clipped(graph, norm, scale, options.clip_norm);
  }
  add_parameter_updates(graph, model, options, gradients, rates, scale);
  return graph;
}

std::string count_name(const std::string& parameter) { return "step/" + parameter; }
std::string accumulator_name(const std::string& parameter) { return "accumulated/" + parameter; }

Graph accumulation_graph(const TrainingModel& model, const TrainingOptions& options, bool* weighs,
                         Delivery delivery) {
  Graph graph = model.graph;
  const bool scaled = scales_loss(options), look_first = options.check_finite || scaled;
  begin_step(graph, options, true);
  *weighs = graph.outputs().size() > 1 + options.step_outputs.size();
  const Value weight = *weighs ? graph.outputs().back().value : Value();
  const Value loss = graph.outputs()[0].value;
  Value seed, scale;
  if (scaled) std::tie(seed, scale) = scale_loss(graph, loss);
  const Phase phase = look_first ? Phase::forward : Phase::backward;
  const std::vector<Value> gradients = gradients_of(model, graph, loss, phase, seed);
  if (look_first) {
    Graph::Scope scope(graph, phase, "grad_norm");
    Value norm = steep::apply("steep.GlobalNorm", std::span<const Value>(gradients));
    graph.add_output("grad_norm", scaled ? norm * scale : norm, phase);
  }
  for (size_t i = 0; i < gradients.size(); ++i) {
    const Graph::Scope scope(graph, Phase::backward, "accumulate/" + model.parameters[i]);
    const Type& type = graph.find(model.parameters[i]).type();
    const DType dtype = update_dtype(type);
    Value gradient = cast(gradients[i], dtype);
    if (scale) gradient = gradient * cast(scale, dtype);
    if (weight) gradient = gradient * cast(weight, dtype);
    Value delivered = gradient;
    if (delivery.sums) {
      const Value sum =
          add_optimizer_state(graph, accumulator_name(model.parameters[i]), {dtype, type.shape});
      delivered = sum + gradient;
      graph.add_update(sum, delivered);
    }
    deliver(delivered, delivery, model.parameters[i], i);
  }
  return graph;
}

Graph application_graph(const TrainingModel& model, const TrainingOptions& options,
                        const std::set<std::string>* held) {
  Graph graph;
  std::vector<Value> sums;
  for (const std::string& name : model.parameters) {
    sums.emplace_back();
    if (held != nullptr && held->count(name) == 0) continue;
    const Type type = model.graph.find(name).type();
    graph.add_state(name, type);
    sums.back() = graph.add_state(accumulator_name(name), {update_dtype(type), type.shape});
  }
  const std::vector<Rate> rates = rates_for(model, options, graph);
  Value scale = graph.add_input(std::string(kShareInput), {DType::f32, Shape{}}, Phase::backward);
  if (held != nullptr || wants_norm(options)) {
    Graph::Scope scope(graph, Phase::backward, "clip");
    const Value norm =
        held != nullptr
            ? graph.add_input(std::string(kNormInput), {DType::f32, Shape{}}, Phase::backward)
            : steep::apply("steep.GlobalNorm", std::span<const Value>(sums)) * scale;
    if (held == nullptr) graph.add_output("grad_norm", norm, Phase::backward);
    scale = clipped(graph, norm, scale, options.clip_norm);
  }
  add_parameter_updates(graph, model, options, sums, rates, scale);
  return graph;
}

namespace {

/// Replaces the weights by their moving averages.
void read_averages(Graph& graph, const std::vector<std::string>& parameters) {
  for (const std::string& name : parameters) {
    const Graph::Scope scope(graph, Phase::forward, name);
    const Value weight = graph.find(name);
    const Type type{update_dtype(weight.type()), weight.type().shape};
    const Value mean = add_optimizer_state(graph, moment_name(kAverage, name), type);
    graph.replace_uses(weight, cast(mean, weight.dtype()));
  }
}

}  // namespace

Graph eval_graph(const TrainingModel& model, const TrainingOptions& options, bool with_loss) {
  Graph graph = model.graph;
  if (options.ema_decay > 0) read_averages(graph, model.parameters);
  if (with_loss) {
    const AttachedLoss loss_parts = attach_loss(graph, options);
    graph.add_output("loss", readable(loss_parts.loss));
    const Graph::Scope scope(graph, Phase::forward, "loss_weight");
    if (Value weight = loss_weight(loss_parts.mean))
      graph.add_output("loss_weight", readable(weight));
  }
  remove_dropout(graph);
  use_statistics(graph);
  graph.prune();
  return graph;
}

Graph gradient_graph(const TrainingModel& model, const TrainingOptions& options) {
  Graph graph = model.graph;
  const AttachedLoss loss_parts = attach_loss(graph, options);
  graph.set_outputs({});
  graph.add_output("loss", readable(loss_parts.loss));
  run_early_pass(graph, "compute_read_rows", disabled(options));
  Value loss = graph.outputs()[0].value;
  Value seed, scale;
  if (scales_loss(options)) std::tie(seed, scale) = scale_loss(graph, loss);
  const std::vector<Value> gradients = gradients_of(model, graph, loss, Phase::forward, seed);
  const Graph::Scope scope(graph, Phase::forward, "gradients");
  for (size_t i = 0; i < gradients.size(); ++i) {
    Value gradient = gradients[i];
    if (scale) {  // in float32, because the product may not fit in 16 bits
      const Value wide = cast(gradient, update_dtype(gradient.type()));
      gradient = cast_like(wide * cast_like(scale, wide), gradient);
    }
    graph.add_output("grad/" + model.parameters[i], gradient);
  }
  return graph;
}

}  // namespace steep
