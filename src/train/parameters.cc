#include "train/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ops/op_def.h"
#include "steep/error.h"
#include "train/name_suggestions.h"
#include "train/quantised_weights.h"
#include "train/roles.h"

namespace steep {
namespace {

/// The values on which the losses depend through floats and differentiable operators.
struct Path {
  std::vector<char> wanted;    // by value id: whether the losses depend on it
  std::vector<Node> barriers;  // nodes through which no gradient passes, at the ends of the path
};

Path path_to(const Graph& graph, std::span<const Value> losses) {
  Path path;
  path.wanted.assign(graph.value_count(), 0);
  std::vector<char>& wanted = path.wanted;
  for (Value loss : losses) wanted[loss.id()] = 1;
  std::vector<Node> order = graph.nodes();
  for (auto n = order.rbegin(); n != order.rend(); ++n) {
    const OpDef* def = find_op(n->op());
    bool any = false;
    for (int i = 0; i < n->output_count() && !any; ++i) {
      any = n->output(i) && is_float(n->output(i).dtype()) && wanted[n->output(i).id()];
    }
    if (def != nullptr && def->stops_gradient) {
      if (any) path.barriers.push_back(*n);
      continue;
    }
    const int inputs = n->op() == "steep.FakeQuantize" ? 1 : n->input_count();  // not its scale
    for (int i = 0; any && i < inputs; ++i) {
      if (n->input(i) && is_float(n->input(i).dtype())) wanted[n->input(i).id()] = 1;
    }
  }
  return path;
}

std::string what_was_found(const Path& path, const std::vector<std::string>& names,
                           std::span<const LeftOut> left_out, const TrainingOptions& options) {
  std::string text = options.trainable.empty() ? fmt::format("initializers: {}, frozen: {}",
                                                             names.size(), options.frozen.size())
                                               : list_names(options.trainable);
  for (const std::string& line : describe(left_out)) text += "; " + line;
  for (const Node& n : path.barriers) {
    text += fmt::format("; no gradient passes {} '{}'", n.op(), n.name());
  }
  return text;
}

/// A batch consists of tensors, so other kinds of inputs are refused.
void refuse_other_inputs(const Graph& graph) {
  for (Value v : graph.inputs()) {
    if (v.type().kind == Kind::tensor) continue;
    throw ModelError(ErrorParts{
        .what = "A training session takes tensors only, and an input of the model is not a tensor.",
        .node = v.name(),
        .expected = "tensors",
        .received = to_string(v.type()),
        .remedy = "Make the items inputs of the model, or train with the models of steep.grad, "
                  "which take sequences and optionals."});
  }
}

/// Throws ModelError for an unknown name, and for a name in two groups.
void check_groups(const TrainingOptions& options, std::span<const std::string> all, size_t limit) {
  std::map<std::string, size_t> group_of;
  for (size_t i = 0; i < options.groups.size(); ++i) {
    named_by(options.groups[i].names, all, limit);
    for (const std::string& name : options.groups[i].names) {
      const auto [before, first] = group_of.emplace(name, i);
      if (first) continue;
      throw ModelError(
          ErrorParts{.what = "A parameter is named twice by the groups.",
                     .node = name,
                     .expected = "each name once, in one group",
                     .received = fmt::format("groups {} and {}, counted from 0", before->second, i),
                     .remedy = "Keep it in the group whose settings it needs."});
    }
  }
}

/// Why a named constant is not trained, through which no gradient passes.
std::string why_unreached(const Roles& roles, Value v) {
  const std::string reason = roles.why_not(v);
  return reason.empty() ? "has no path to the loss through which a gradient passes" : reason;
}

[[noreturn]] void refuse_integers(Value v, const std::string& why) {
  throw ModelError(ErrorParts{
      .what = "Only float initializers, and integers that DequantizeLinear reads, can be trained.",
      .node = v.name(),
      .expected = "a float dtype",
      .received = to_string(v.type()) + (why.empty() ? "" : ", which " + why)});
}

/// Why a trainable constant is not trained unless it is named; "" if it is trained.
std::string why_left_out(const Roles& roles, Value v, bool constant_node) {
  if (constant_node) return "is a Constant node";
  std::string reason = roles.why_not(v);
  return reason.empty() && v.rank() == 0 ? "is a scalar" : reason;
}

}  // namespace

Named named_by(std::span<const std::string> patterns, std::span<const std::string> all,
               size_t limit) {
  const std::set<std::string> there(all.begin(), all.end());
  Named result;
  for (const std::string& name : patterns) {
    const bool pattern = there.count(name) == 0 && name.find('*') != std::string::npos;
    if (!pattern) result.exact.insert(name);
    bool found = there.count(name) != 0;
    for (size_t i = 0; pattern && i < all.size(); ++i) {
      if (!matches(name, all[i])) continue;
      found = true;
      result.by_pattern.insert(all[i]);
    }
    if (found) continue;
    throw ModelError(
        ErrorParts{.what = pattern ? "There is no such initializer: no name has this pattern."
                                   : "There is no such initializer.",
                   .node = name,
                   .expected = nearest_names(name, all.first(limit)),
                   .received = name});
  }
  return result;
}

ChosenParameters choose_parameters(const Graph& graph, std::span<const Value> losses,
                                   std::span<const std::string> initializers,
                                   std::span<const std::string> constants,
                                   const TrainingOptions& options,
                                   std::span<const LeftOut> inside) {
  refuse_other_inputs(graph);
  const std::vector<std::string> weights(initializers.begin(), initializers.end());
  std::vector<std::string> all = weights;
  all.insert(all.end(), constants.begin(), constants.end());
  const Named trainable = named_by(options.trainable, all, weights.size());
  const Named frozen = named_by(options.frozen, all, weights.size());
  check_groups(options, all, weights.size());
  if (losses.empty()) {
    throw ModelError(
        ErrorParts{.what = "The model has no float output that can be trained on.",
                   .expected = "an output that a loss can be computed from",
                   .remedy = "Export the scores, before they are rounded or compared."});
  }
  const Path path = path_to(graph, losses);
  const Roles roles(graph, losses, options.loss.empty());
  const IntegerUses integers(graph, losses);
  if (options.trainable.empty()) integers.refuse_operators();
  ChosenParameters choice;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string& name = all[i];
    const Value v = graph.find(name);
    const bool named = trainable.exact.count(name) != 0;
    if ((!options.trainable.empty() && !trainable.has(name)) || frozen.has(name)) continue;
    if (!v || v.role() != Role::constant) continue;  // no node reads it any more
    if (!is_float(v.dtype())) {
      std::string why = integers.why_not(v);
      if (named) refuse_integers(v, why);
      if (!why.empty()) choice.left_out.push_back({name, std::move(why)});
      continue;
    }
    if (path.wanted[v.id()] == 0) {
      if (named) choice.left_out.push_back({name, why_unreached(roles, v)});
      continue;
    }
    const bool constant_node = i >= weights.size();
    if (!named && constant_node && (v.rank() == 0 || !roles.why_not(v).empty())) continue;
    std::string reason = named ? "" : why_left_out(roles, v, constant_node);
    if (reason.empty()) {
      choice.parameters.push_back(v);
    } else {
      choice.left_out.push_back({name, std::move(reason)});
    }
  }
  for (const LeftOut& l : inside) {
    if (options.trainable.empty() && !frozen.has(l.name)) choice.left_out.push_back(l);
  }
  for (Value v : choice.parameters) {
    if (integers.feeds_operator(v)) integers.refuse_operators();
  }
  if (choice.parameters.empty()) {
    throw ModelError(ErrorParts{
        .what = "The loss does not depend on any trained parameter.",
        .node = losses[0].name(),
        .expected = "a float initializer on which the loss depends",
        .received = what_was_found(path, weights, choice.left_out, options),
        .remedy = integers.operators().empty()
                      ? "Name other parameters, or check that they were exported as initializers."
                      : kInsteadOfQuantisedOperators});
  }
  return choice;
}

void expand_groups(std::vector<ParameterGroup>* groups, std::span<const std::string> initializers,
                   std::span<const std::string> constants) {
  std::vector<std::string> all(initializers.begin(), initializers.end());
  all.insert(all.end(), constants.begin(), constants.end());
  for (ParameterGroup& group : *groups) {
    const std::set<std::string> names = named_by(group.names, all, initializers.size()).names();
    // Without patterns the list stays as it is, so that a duplicate name is still an error.
    const bool patterns = std::any_of(group.names.begin(), group.names.end(),
                                      [&](const auto& name) { return names.count(name) == 0; });
    if (patterns) group.names = std::vector<std::string>(names.begin(), names.end());
  }
}

std::set<std::string> named_in(const TrainingOptions& options) {
  std::set<std::string> names(options.trainable.begin(), options.trainable.end());
  names.insert(options.frozen.begin(), options.frozen.end());
  for (const ParameterGroup& group : options.groups)
    names.insert(group.names.begin(), group.names.end());
  return names;
}

std::vector<LeftOut> left_inside(std::span<const std::pair<std::string, std::string>> inside) {
  std::vector<LeftOut> result;
  for (const auto& [name, why] : inside) result.push_back({name, why});
  return result;
}

std::vector<std::string> describe(std::span<const LeftOut> left_out) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
  for (const LeftOut& l : left_out) {
    auto at = std::find_if(reasons.begin(), reasons.end(),
                           [&](const auto& r) { return r.first == l.reason; });
    if (at == reasons.end()) at = reasons.insert(at, {l.reason, {}});
    at->second.push_back(l.name);
  }
  std::vector<std::string> lines;
  for (const auto& [reason, names] : reasons) {
    lines.push_back(fmt::format("not trained: {} ({})", list_names(names), reason));
  }
  return lines;
}

}  // namespace steep
