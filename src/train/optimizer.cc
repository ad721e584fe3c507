#include "train/optimizer.h"

#include <fmt/format.h>

#include <cmath>

#include "ops/build.h"
#include "steep/error.h"

namespace steep {
namespace {

bool is_sgd(const OptimizerOptions& o) { return o.kind == "sgd"; }

void check_range(const char* field, double value, double low, double high, bool high_is_in) {
  const bool fits = value >= low && (high_is_in ? value <= high : value < high);
  if (fits && std::isfinite(value)) return;
  throw ModelError(ErrorParts{.what = fmt::format("The optimizer's {} is out of range.", field),
                              .expected = std::isinf(high)
                                              ? fmt::format("a finite number of at least {}", low)
                                              : fmt::format("{} to {}", low, high),
                              .received = fmt::format("{}", value)});
}

}  // namespace

void check_optimizer(const OptimizerOptions& o) {
  if (!is_sgd(o) && o.kind != "adam" && o.kind != "adamw" && o.kind != "lamb") {
    throw ModelError(ErrorParts{.what = "The optimizer is unknown.",
                                .expected = "sgd, adam, adamw or lamb",
                                .received = o.kind});
  }
  check_range("lr", o.lr, 0, INFINITY, false);
  check_range("weight_decay", o.weight_decay, 0, INFINITY, false);
  check_range("momentum", o.momentum, 0, INFINITY, false);
  check_range("epsilon", o.epsilon, 0, INFINITY, false);
  check_range("beta1", o.beta1, 0, 1, false);
  check_range("beta2", o.beta2, 0, 1, false);
  check_range("dampening", o.dampening, -INFINITY, INFINITY, false);
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) {
    throw ModelError(
        ErrorParts{.what = "Nesterov's method needs a momentum and no dampening.",
                   .received = fmt::format("momentum {}, dampening {}", o.momentum, o.dampening)});
  }
}

std::vector<std::string> moment_kinds(const OptimizerOptions& o) {
  if (!is_sgd(o)) return {"exp_avg", "exp_avg_sq"};
  return o.momentum != 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
}

std::vector<double> settings_of(const OptimizerOptions& o) {
  if (is_sgd(o)) return {o.lr, o.momentum, o.dampening, o.weight_decay};
  return {o.lr, o.beta1, o.beta2, o.epsilon, o.weight_decay};
}

bool same_update(const OptimizerOptions& a, const OptimizerOptions& b) {
  return a.kind == b.kind && a.nesterov == b.nesterov && a.bias_correction == b.bias_correction &&
         moment_kinds(a) == moment_kinds(b);
}

std::string moment_name(const std::string& kind, const std::string& parameter) {
  return kind + "/" + parameter;
}

Value add_optimizer_state(Graph& graph, const std::string& name, const Type& type) {
  if (!graph.find(name)) return graph.add_state(name, type);
  throw ModelError(ErrorParts{.what = "A value of the model has the name of an optimizer moment.",
                              .node = name,
                              .remedy = "Rename it in the model."});
}

void add_update(Value parameter, const UpdateInputs& in, const OptimizerOptions& o) {
  Graph& g = parameter.graph();
  std::vector<Value> states{parameter};
  for (const std::string& kind : moment_kinds(o)) {
    states.push_back(add_optimizer_state(g, moment_name(kind, parameter.name()), parameter.type()));
  }
  std::string op;
  std::vector<Value> operands;
  Attrs attrs;
  const bool fixed = in.lr.rank() == 0;  // else the node reads its numbers where it has its rate
  if (fixed) attrs.set("weight_decay", o.weight_decay);
  if (is_sgd(o)) {
    op = "steep.SGD";
    operands = {parameter, in.gradient, in.lr, states.size() > 1 ? states[1] : Value(), in.step};
    if (fixed) attrs.set("momentum", o.momentum);
    if (fixed) attrs.set("dampening", o.dampening);
    attrs.set("nesterov", int64_t{o.nesterov});
  } else {
    op = o.kind == "lamb" ? "steep.Lamb" : "steep.Adam";
    operands = {parameter, in.gradient, states[1], states[2], in.lr, in.step};
    if (fixed) attrs.set("beta1", o.beta1);
    if (fixed) attrs.set("beta2", o.beta2);
    if (fixed) attrs.set("epsilon", o.epsilon);
    if (o.kind == "lamb") {
      attrs.set("bias_correction", int64_t{o.bias_correction});
    } else {
      attrs.set("decoupled", int64_t{o.kind == "adamw"});
    }
  }
  if (in.grad_scale) operands.push_back(in.grad_scale);
  const std::vector<Value> updated =
      apply_n(op, operands, static_cast<int>(states.size()), std::move(attrs));
  for (size_t i = 0; i < states.size(); ++i) g.add_update(states[i], updated[i]);
}

}  // namespace steep
