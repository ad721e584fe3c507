#include "train/optimizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "data/block_float.h"
#include "ir/seed.h"
#include "ops/defs/optimizers/optimizers.h"
#include "runtime/float32.h"
#include "runtime/zeros.h"
#include "steep/error.h"
#include "train/custom_optimizer.h"
#include "train/weight.h"

namespace steep {
namespace {

/// As Algorithm::epsilon: the distance from 1 to the next number of the update's type.
constexpr double kOfType = -1;

/// The values of OptimizerOptions::state_precision.
constexpr const char *kFloatStates = "float32", *kBfloat16States = "bfloat16",
                     *kInt8States = "int8";

/// Of the operators for moments of other precisions that also update weights of bfloat16: the
/// stream of the random numbers by which these are rounded, or 0.
constexpr const char* kParamStream = "param_stream";

struct Algorithm {
  const char* name;
  const char* op;
  std::vector<Moment> moments{};     // those that do not depend on options
  std::vector<const char*> flags{};  // those it supports, beside maximize
  double epsilon = 1e-8;
  double momentum = 0;
  bool nesterov = false;
  /// The operator for moments of other precisions than float32; nullptr: there is none.
  const char* narrow = nullptr;
};

const std::vector<Algorithm>& kinds() {
  static const std::vector<Moment> adams{{"exp_avg"},
                                         {.kind = "exp_avg_sq", .never_negative = true}};
  static const std::vector<Algorithm> table{
      {.name = "sgd", .op = "steep.SGD", .flags = {"nesterov"}, .narrow = "steep.NarrowSGD"},
      {.name = "adam",
       .op = "steep.Adam",
       .moments = adams,
       .flags = {"amsgrad", "decoupled_weight_decay", "bias_correction"},
       .narrow = "steep.NarrowAdam"},
      {.name = "adamw",
       .op = "steep.Adam",
       .moments = adams,
       .flags = {"amsgrad", "decoupled_weight_decay", "bias_correction"},
       .narrow = "steep.NarrowAdam"},
      {.name = "transformers_adamw",
       .op = "steep.Adam",
       .moments = adams,
       .flags = {"bias_correction"},
       .epsilon = 1e-6,
       .narrow = "steep.NarrowAdam"},
      {"nadam",
       "steep.NAdam",
       {adams[0], adams[1], {.kind = "mu_product", .initial = 1, .scalar = true}},
       {"decoupled_weight_decay"}},
      {"radam", "steep.RAdam", adams, {"decoupled_weight_decay"}},
      {"adagrad", "steep.Adagrad", {{.kind = "sum", .never_negative = true}}, {}, 1e-10},
      {"adadelta",
       "steep.Adadelta",
       {{.kind = "square_avg", .never_negative = true},
        {.kind = "acc_delta", .never_negative = true}},
       {},
       1e-6},
      {"rmsprop", "steep.RMSprop", {{.kind = "square_avg", .never_negative = true}}, {"centered"}},
      {"adamax", "steep.Adamax", {{"exp_avg"}, {.kind = "exp_inf", .never_negative = true}}},
      {.name = "lamb",
       .op = "steep.Lamb",
       .moments = adams,
       .flags = {"bias_correction"},
       .narrow = "steep.NarrowLamb"},
      {"adafactor", "steep.Adafactor", {}, {}, kOfType},
      {"muon", "steep.Muon", {{"momentum_buffer"}}, {"nesterov"}, 1e-7, 0.95, true},
  };
  return table;
}

constexpr std::pair<const char*, bool OptimizerOptions::*> kFlags[] = {
    {"amsgrad", &OptimizerOptions::amsgrad},
    {"centered", &OptimizerOptions::centered},
    {"decoupled_weight_decay", &OptimizerOptions::decoupled_weight_decay},
    {"bias_correction", &OptimizerOptions::bias_correction},
};

bool is_asked_for(const OptimizerOptions& o, bool OptimizerOptions::*flag) {
  return o.*flag != OptimizerOptions().*flag;
}

/// The options that are neither numbers nor flags of a step, if they are set.
const char* set_choice(const OptimizerOptions& o) {
  const OptimizerOptions plain;
  if (o.ns_coefficients != plain.ns_coefficients) return "ns_coefficients";
  if (o.ns_steps != plain.ns_steps) return "ns_steps";
  if (o.adjust_lr_fn != plain.adjust_lr_fn) return "adjust_lr_fn";
  return nullptr;
}

/// A field with its range: [low, high), or [low, high] with `or_high`.
struct Number {
  const char* name;
  double OptimizerOptions::*field;
  double low = 0, high = INFINITY;
  bool or_high = false;
};
constexpr Number kNumbers[] = {
    {"lr", &OptimizerOptions::lr},
    {"weight_decay", &OptimizerOptions::weight_decay},
    {"dampening", &OptimizerOptions::dampening, -INFINITY},
    {"beta1", &OptimizerOptions::beta1, 0, 1},
    {"beta2", &OptimizerOptions::beta2, 0, 1},
    {"momentum_decay", &OptimizerOptions::momentum_decay},
    {"lr_decay", &OptimizerOptions::lr_decay},
    {"initial_accumulator_value", &OptimizerOptions::initial_accumulator_value},
    {"rho", &OptimizerOptions::rho, 0, 1, true},
    {"alpha", &OptimizerOptions::alpha},
    {"beta2_decay", &OptimizerOptions::beta2_decay, -INFINITY, 0, true},
    {"epsilon2", &OptimizerOptions::epsilon2},
    {"clip_threshold", &OptimizerOptions::clip_threshold, 1},
};
constexpr const char* kMatchRms = "match_rms_adamw";
constexpr const char* kUnclamped = "spectral_unclamped";  // in PyTorch since 2.14
constexpr double kMostSteps = 99;                         // as in PyTorch
/// The attributes of steep.Muon for ns_coefficients, with the defaults.
constexpr struct {
  const char* name;
  double otherwise;
} kCoefficients[] = {{"ns_a", 3.4445}, {"ns_b", -4.775}, {"ns_c", 2.0315}};

/// REQUIRES: o.kind is a built-in optimizer.
const Algorithm& kind_of(const OptimizerOptions& o) {
  return *std::find_if(kinds().begin(), kinds().end(),
                       [&](const Algorithm& k) { return o.kind == k.name; });
}

double number(const OptimizerOptions& o, std::string_view name) {
  if (name == "epsilon") return o.epsilon.value_or(kind_of(o).epsilon);
  if (name == "momentum") return momentum_of(o);
  for (size_t i = 0; i < std::size(kCoefficients); ++i) {
    if (name == kCoefficients[i].name)
      return o.ns_coefficients.empty() ? kCoefficients[i].otherwise : o.ns_coefficients[i];
  }
  return o.*std::find_if(std::begin(kNumbers), std::end(kNumbers), [&](const Number& n) {
              return n.name == name;
            })->field;
}

std::string range_text(double low, double high) {
  if (std::isinf(low) && std::isinf(high)) return "a number that is finite in float32";
  if (std::isinf(high))
    return fmt::format("a number of at least {} that is finite in float32", low);
  if (std::isinf(low)) return fmt::format("a number of at most {} that is finite in float32", high);
  return fmt::format("{} to {}", low, high);
}

void check_range(const char* field, double value, double low, double high, bool or_high) {
  const bool fits = value >= low && (or_high ? value <= high : value < high);
  if (fits && fits_float32(value)) return;
  throw ModelError(ErrorParts{.what = fmt::format("The optimizer's {} is out of range.", field),
                              .expected = range_text(low, high),
                              .received = fmt::format("{}", value)});
}

[[noreturn]] void refuse_setting(const OptimizerOptions& o, const char* name) {
  throw ModelError(
      ErrorParts{.what = fmt::format("The optimizer has no setting {}.", name),
                 .expected = "lr, weight_decay, maximize; and attributes of a registered function",
                 .received = fmt::format("{} with {}", o.kind, name),
                 .remedy = "Numbers of a registered optimizer are in `attributes`, by name."});
}

Type type_of(const Moment& moment, const Type& parameter) {
  if (moment.scalar) return {DType::f32, Shape{}};
  const bool narrow = moment.narrow != DType::undefined;
  Type type{narrow ? moment.narrow : update_dtype(parameter), parameter.shape};
  if (moment.reduced != 0) *(type.shape->end() + moment.reduced) = 1;
  return type;
}

/// The dtype of a moment of a parameter, or DType::undefined if it is that of the update.
DType narrow_dtype(const OptimizerOptions& o, const Moment& moment, const Type& parameter) {
  const bool large = parameter.concrete() && element_count(parameter.dims()) >= kLeastNarrow;
  if (o.state_precision == kFloatStates || !large || update_dtype(parameter) != DType::f32)
    return DType::undefined;
  if (o.state_precision == kBfloat16States) return DType::bf16;
  return moment.never_negative ? DType::u8 : DType::i8;
}

/// The type of the scales of a moment of this parameter.
Type scale_type(const Type& parameter) {
  return {DType::f32, Shape{float_blocks(element_count(parameter.dims()))}};
}

bool is_muon(const OptimizerOptions& o) { return !custom_optimizer(o) && o.kind == "muon"; }

bool nesterov_of(const OptimizerOptions& o) { return o.nesterov.value_or(kind_of(o).nesterov); }

/// Checks a registered optimizer's settings.
void check_own(const CustomOptimizer& own, const OptimizerOptions& o) {
  for (const Number& n : kNumbers) {
    const bool its_own =
        std::string_view(n.name) == "lr" || std::string_view(n.name) == "weight_decay";
    if (!its_own && o.*n.field != OptimizerOptions().*n.field) refuse_setting(o, n.name);
  }
  for (const auto& [name, flag] : kFlags) {
    if (is_asked_for(o, flag)) refuse_setting(o, name);
  }
  if (o.momentum.value_or(0) != 0) refuse_setting(o, "momentum");
  if (o.nesterov.value_or(false)) refuse_setting(o, "nesterov");
  if (o.epsilon) refuse_setting(o, "epsilon");
  if (const char* choice = set_choice(o)) refuse_setting(o, choice);
  check_attributes(own, o);
}

/// Checks that the kind has the flags that are set.
void check_flags(const OptimizerOptions& o) {
  const std::vector<const char*>& flags = kind_of(o).flags;
  const auto check = [&](const char* name, bool asked, bool value) {
    if (!asked || std::find(flags.begin(), flags.end(), std::string_view(name)) != flags.end())
      return;
    throw ModelError(ErrorParts{.what = fmt::format("The optimizer has no option {}.", name),
                                .expected = fmt::format("{}", fmt::join(flags, ", ")),
                                .received = fmt::format("{} with {} = {}", o.kind, name, value)});
  };
  for (const auto& [name, flag] : kFlags) check(name, is_asked_for(o, flag), o.*flag);
  check("nesterov", o.nesterov.value_or(false), true);
}

/// Checks that the kind reads the numbers and choices that are set.
void check_unread(const OptimizerOptions& o) {
  const Algorithm& kind = kind_of(o);
  std::vector<std::string> read{"lr"};
  for (const std::string_view name : numbers_of(kind.op)) {
    if (!name.starts_with("ns_")) read.emplace_back(name);
  }
  if (is_muon(o)) read.insert(read.end(), {"ns_coefficients", "ns_steps", "adjust_lr_fn"});
  if (o.kind == "adagrad") read.emplace_back("initial_accumulator_value");
  const auto check = [&](const char* name, bool given) {
    if (!given || std::find(read.begin(), read.end(), name) != read.end()) return;
    throw ModelError(
        ErrorParts{.what = fmt::format("The optimizer has no setting {}.", name),
                   .expected = fmt::format("{}", fmt::join(read, ", ")),
                   .received = fmt::format("{} with {}", o.kind, name),
                   .remedy = "Leave it out, or choose an optimizer that has this setting."});
  };
  const OptimizerOptions plain;
  for (const Number& n : kNumbers) check(n.name, o.*n.field != plain.*n.field);
  check("momentum", o.momentum.value_or(0) != 0);
  check("epsilon", o.epsilon.has_value());
  if (const char* choice = set_choice(o)) check(choice, true);
}

/// Checks that the kind has the precision of states that is asked for.
void check_state_precision(const OptimizerOptions& o) {
  const std::string& precision = o.state_precision;
  if (precision == kFloatStates) return;
  if (precision != kBfloat16States && precision != kInt8States) {
    throw ModelError(ErrorParts{
        .what = "The precision of the optimizer's states is unknown.",
        .expected = fmt::format("{}, {} or {}", kFloatStates, kBfloat16States, kInt8States),
        .received = precision});
  }
  const bool built_in = custom_optimizer(o) == nullptr;
  if (built_in && kind_of(o).narrow != nullptr && !o.amsgrad) return;
  std::vector<std::string> others;
  for (const Algorithm& kind : kinds()) {
    if (kind.narrow != nullptr) others.emplace_back(kind.name);
  }
  throw ModelError(ErrorParts{
      .what = "The optimizer keeps its states in float32 only.",
      .expected = fmt::format("state_precision {}; {} or {} with {}, all without amsgrad",
                              kFloatStates, kBfloat16States, kInt8States, fmt::join(others, ", ")),
      .received = fmt::format("{}{} with state_precision {}", o.kind, o.amsgrad ? " (amsgrad)" : "",
                              precision),
      .remedy = "Leave state_precision out, or choose one of these optimizers."});
}

void check_newton_schulz(const OptimizerOptions& o) {
  if (!o.ns_coefficients.empty() && o.ns_coefficients.size() != std::size(kCoefficients)) {
    throw ModelError(
        ErrorParts{.what = "The Newton-Schulz iteration has another number of coefficients.",
                   .expected = "ns_coefficients with three numbers",
                   .received = fmt::format("{}", fmt::join(o.ns_coefficients, ", "))});
  }
  for (const double c : o.ns_coefficients)
    check_range("ns_coefficients", c, -INFINITY, INFINITY, false);
  check_range("ns_steps", static_cast<double>(o.ns_steps), 0, kMostSteps, true);
  if (const auto& chosen = o.adjust_lr_fn;
      !chosen.empty() && chosen != "original" && chosen != kMatchRms && chosen != kUnclamped) {
    throw ModelError(
        ErrorParts{.what = "The optimizer's adjust_lr_fn is unknown.",
                   .expected = fmt::format("original, {} or {}", kMatchRms, kUnclamped),
                   .received = chosen});
  }
}

}  // namespace

std::vector<std::string> built_in_optimizers() {
  std::vector<std::string> names;
  for (const Algorithm& kind : kinds()) names.emplace_back(kind.name);
  return names;
}

std::vector<std::string> optimizer_kinds() {
  std::vector<std::string> names = built_in_optimizers();
  for (const auto& [name, own] : custom_functions()->optimizers) names.push_back(name);
  return names;
}

void check_optimizer(const OptimizerOptions& o) {
  const std::vector<std::string> kinds = optimizer_kinds();
  if (std::find(kinds.begin(), kinds.end(), o.kind) == kinds.end()) {
    throw ModelError(ErrorParts{.what = "The optimizer is unknown.",
                                .expected = fmt::format("{}", fmt::join(kinds, ", ")),
                                .received = o.kind});
  }
  for (const Number& n : kNumbers) check_range(n.name, o.*n.field, n.low, n.high, n.or_high);
  check_state_precision(o);
  if (const auto own = custom_optimizer(o)) return check_own(*own, o);
  if (!o.attributes.empty()) refuse_setting(o, o.attributes.begin()->first.c_str());
  check_range("momentum", momentum_of(o), 0, INFINITY, false);
  if (o.epsilon) check_range("epsilon", *o.epsilon, 0, INFINITY, false);
  check_flags(o);
  check_unread(o);
  check_newton_schulz(o);
  if (o.kind == "sgd" && nesterov_of(o) && (momentum_of(o) == 0 || o.dampening != 0)) {
    throw ModelError(ErrorParts{
        .what = "Nesterov's method needs a momentum and no dampening.",
        .received = fmt::format("momentum {}, dampening {}", momentum_of(o), o.dampening)});
  }
}

void check_ranks(std::span<const std::pair<Value, const OptimizerOptions*>> parameters) {
  std::vector<std::string> names, types;
  for (const auto& [parameter, options] : parameters) {
    if (!is_muon(*options) || parameter.rank() == 2) continue;
    names.push_back(parameter.name());
    types.push_back(fmt::format("{} {}", parameter.name(), to_string(parameter.type())));
  }
  if (names.empty()) return;
  throw ModelError(
      ErrorParts{.what = "The optimizer muon updates matrices only.",
                 .node = fmt::format("{}", fmt::join(names, ", ")),
                 .expected = "parameters of two axes",
                 .received = fmt::format("{}", fmt::join(types, ", ")),
                 .remedy = "Put them into a group with an optimizer of its own, such as adamw, or "
                           "freeze them."});
}

double momentum_of(const OptimizerOptions& o) {
  return o.momentum.value_or(custom_optimizer(o) ? 0 : kind_of(o).momentum);
}

namespace {

/// As moments_of(), in float32.
std::vector<Moment> wide_moments(const OptimizerOptions& o, int64_t rank) {
  if (const auto own = custom_optimizer(o)) {
    std::vector<Moment> states;
    for (const std::string& name : own->states) states.push_back({.kind = name});
    return states;
  }
  const Algorithm& kind = kind_of(o);
  std::vector<Moment> moments = kind.moments;
  if (o.kind == "muon") return moments;
  if (o.kind == "adafactor") {
    if (rank < 2) return {{.kind = "variance", .never_negative = true}};
    return {{.kind = "row_var", .reduced = -1, .never_negative = true},
            {.kind = "col_var", .reduced = -2, .never_negative = true}};
  }
  if (o.kind == "adagrad") moments[0].initial = o.initial_accumulator_value;
  if (o.amsgrad) moments.push_back({.kind = "max_exp_avg_sq", .never_negative = true});
  if (o.centered) moments.push_back({"grad_avg"});
  const std::vector<std::string_view> numbers = numbers_of(kind.op);
  const bool has_momentum = std::find(numbers.begin(), numbers.end(), "momentum") != numbers.end();
  if (has_momentum && momentum_of(o) != 0) moments.push_back({"momentum_buffer"});
  return moments;
}

}  // namespace

std::vector<Moment> moments_of(const OptimizerOptions& o, const Type& parameter) {
  std::vector<Moment> moments = wide_moments(o, static_cast<int64_t>(parameter.shape->size()));
  for (Moment& moment : moments) moment.narrow = narrow_dtype(o, moment, parameter);
  return moments;
}

Tensor initial_of(const Moment& moment, const Type& parameter) {
  const Type type = type_of(moment, parameter);
  // Zeros whose pages are not touched: a session that only evaluates never needs the memory.
  Tensor tensor = untouched_zeros(type.dtype, type.dims());
  if (moment.initial == 0) return tensor;
  if (type.dtype == DType::f32) {
    std::fill_n(tensor.data<float>(), tensor.size(), static_cast<float>(moment.initial));
  } else {
    std::fill_n(tensor.data<double>(), tensor.size(), moment.initial);
  }
  return tensor;
}

std::vector<double> settings_of(const OptimizerOptions& o) {
  std::vector<double> settings{o.lr};
  if (custom_optimizer(o)) return settings;
  for (const std::string_view name : numbers_of(kind_of(o).op)) settings.push_back(number(o, name));
  return settings;
}

bool same_update(const OptimizerOptions& a, const OptimizerOptions& b) {
  constexpr int64_t kMatrix = 2;
  if (a.kind != b.kind || a.state_precision != b.state_precision) return false;
  if (custom_optimizer(a)) {
    if (a.weight_decay != b.weight_decay) return false;
  } else if (nesterov_of(a) != nesterov_of(b)) {
    return false;
  }
  return a.attributes == b.attributes && a.maximize == b.maximize && a.ns_steps == b.ns_steps &&
         a.adjust_lr_fn == b.adjust_lr_fn &&
         wide_moments(a, kMatrix).size() == wide_moments(b, kMatrix).size() &&
         std::all_of(std::begin(kFlags), std::end(kFlags),
                     [&](const auto& flag) { return a.*flag.second == b.*flag.second; });
}

std::string moment_name(const std::string& kind, const std::string& parameter) {
  return kind + "/" + parameter;
}

std::string scale_name(const std::string& moment) {
  std::string name = moment;
  return name.insert(name.find('/'), "_scale");
}

Value add_optimizer_state(Graph& graph, const std::string& name, const Type& type) {
  if (!graph.find(name)) return graph.add_state(name, type);
  throw ModelError(ErrorParts{.what = "A value of the model has the name of an optimizer moment.",
                              .node = name,
                              .remedy = "Rename it in the model."});
}

void add_update(Value parameter, const UpdateInputs& in, const OptimizerOptions& o,
                const Halves& halves) {
  Graph& g = parameter.graph();
  const Weight weight(parameter, halves);
  std::vector<Value> states, scales;
  bool narrow = false;
  for (const Moment& moment : moments_of(o, parameter.type())) {
    const std::string name = moment_name(moment.kind, parameter.name());
    states.push_back(add_optimizer_state(g, name, type_of(moment, parameter.type())));
    narrow = narrow || moment.narrow != DType::undefined;
    if (moment.has_scales())
      scales.push_back(add_optimizer_state(g, scale_name(name), scale_type(parameter.type())));
  }
  if (const auto own = custom_optimizer(o)) return add_own_update(*own, weight, states, in, o);
  const char* op = narrow ? kind_of(o).narrow : kind_of(o).op;
  // The kernel converts a weight of bfloat16 a few blocks at a time: no float32 copy has to exist.
  const bool as_it_is =
      narrow && parameter.dtype() == DType::bf16 && !halves.masters && declares(op, kParamStream);
  const Value before = as_it_is ? parameter : weight.now();
  const Value gradient = as_it_is ? in.gradient : cast_like(in.gradient, before);
  std::vector<Value> operands{before, gradient, in.lr, in.step, in.grad_scale};
  operands.insert(operands.end(), states.begin(), states.end());
  Attrs attrs;
  if (narrow) {
    operands.resize(operands.size() + states.size());  // places of the scales
    std::copy(scales.rbegin(), scales.rend(), operands.rbegin());
    operands.push_back(seed_of(g));
    attrs.set("stream", halves.moments);
    if (as_it_is) attrs.set(kParamStream, halves.stochastic ? halves.stream : int64_t{0});
    states.insert(states.end(), scales.begin(), scales.end());
  }
  if (in.lr.rank() == 0) {  // if in.lr has settings_of(), the node reads the numbers there instead
    for (const std::string_view name : numbers_of(op)) attrs.set(name, number(o, name));
  }
  attrs.set("maximize", int64_t{o.maximize});
  attrs.set("nesterov", int64_t{nesterov_of(o)});
  attrs.set("centered", int64_t{o.centered});
  const bool decoupled = o.kind == "adamw" || o.decoupled_weight_decay;
  attrs.set("decoupled", int64_t{o.kind == "transformers_adamw" ? 2 : decoupled});
  attrs.set("bias_correction", int64_t{o.bias_correction});
  if (is_muon(o)) {
    attrs.set("ns_steps", o.ns_steps);
    attrs.set("match_rms", int64_t{o.adjust_lr_fn == kMatchRms});
    attrs.set("unclamped", int64_t{o.adjust_lr_fn == kUnclamped});
  }
  const std::vector<Value> results =
      apply_n(op, operands, static_cast<int>(states.size()) + 1, std::move(attrs));
  if (weight.is_half() && !as_it_is) {
    weight.write(results[0]);
  } else {
    g.add_update(parameter, results[0]);
  }
  for (size_t i = 0; i < states.size(); ++i) g.add_update(states[i], results[i + 1]);
}

}  // namespace steep
