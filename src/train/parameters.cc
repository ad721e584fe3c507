#include "train/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "ops/op_def.h"
#include "steep/error.h"
#include "train/names.h"

namespace steep {
namespace {

/// Operands that configure an operator. Training them is legal, wanted by nobody, and has to be
/// asked for by name.
struct Setting {
  std::string_view op;
  int first;
  int last;
};
constexpr std::array kSettings = {
    Setting{"BatchNormalization", 3, 4},
    Setting{"Clip", 1, 2},
    Setting{"Pow", 1, 1},
    Setting{"Pad", 2, 2},
    Setting{"Resize", 1, 2},
    Setting{"OneHot", 2, 2},
    Setting{"Dropout", 1, 1},
};

bool is_setting(Node n, int input) {
  return std::any_of(kSettings.begin(), kSettings.end(), [&](const Setting& s) {
    return s.op == n.op() && input >= s.first && input <= s.last;
  });
}

/// What the losses depend on through floats and differentiable operators.
struct Path {
  std::vector<char> wanted;    // by value id: do they depend on it?
  std::vector<Node> barriers;  // nodes at which the dependence ends: no gradient passes them
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
    for (int i = 0; any && i < n->input_count(); ++i) {
      if (n->input(i) && is_float(n->input(i).dtype())) wanted[n->input(i).id()] = 1;
    }
  }
  return path;
}

std::string what_was_found(const Path& path, const std::vector<std::string>& known,
                           const TrainingOptions& options) {
  std::string text = options.trainable.empty() ? fmt::format("initializers: {}, frozen: {}",
                                                             known.size(), options.frozen.size())
                                               : list_names(options.trainable);
  for (const Node& n : path.barriers) {
    text += fmt::format("; no gradient passes {} '{}'", n.op(), n.name());
  }
  return text;
}

bool only_settings(Value v, const std::vector<Node>& users) {
  for (Node n : users) {
    for (int i = 0; i < n.input_count(); ++i) {
      if (n.input(i) == v && !is_setting(n, i)) return false;
    }
  }
  return !users.empty();
}

}  // namespace

std::vector<Value> choose_parameters(const Graph& graph, std::span<const Value> losses,
                                     std::span<const std::string> initializers,
                                     const TrainingOptions& options) {
  const std::vector<std::string> known(initializers.begin(), initializers.end());
  const std::set<std::string> there(known.begin(), known.end());
  auto check = [&](const std::string& name) {
    if (there.count(name) == 0) {
      throw ModelError(ErrorParts{.what = "There is no such initializer.",
                                  .node = name,
                                  .expected = nearest_names(name, known),
                                  .received = name});
    }
    return name;
  };
  std::set<std::string> trainable, frozen;
  for (const std::string& name : options.trainable) trainable.insert(check(name));
  for (const std::string& name : options.frozen) frozen.insert(check(name));
  for (const ParameterGroup& group : options.groups) {
    for (const std::string& name : group.names) check(name);
  }

  if (losses.empty()) {
    throw ModelError(
        ErrorParts{.what = "The model has no float output from which to train.",
                   .expected = "an output that a loss can be computed from",
                   .remedy = "Export the scores, before they are rounded or compared."});
  }
  const Path path = path_to(graph, losses);
  const auto users = graph.users();
  std::vector<Value> chosen;
  for (const std::string& name : known) {
    Value v = graph.find(name);
    const bool named = trainable.count(name) != 0;
    if ((!trainable.empty() && !named) || frozen.count(name) != 0) continue;
    if (!v || v.role() != Role::constant) continue;  // nothing reads it any more
    if (!is_float(v.dtype())) {
      if (!named) continue;
      throw ModelError(ErrorParts{.what = "Only float initializers can be trained.",
                                  .node = name,
                                  .expected = "a float dtype",
                                  .received = to_string(v.type())});
    }
    if (path.wanted[v.id()] == 0) continue;
    if (!named && (v.rank() == 0 || only_settings(v, users[v.id()]))) continue;
    chosen.push_back(v);
  }
  if (chosen.empty()) {
    throw ModelError(ErrorParts{
        .what = "No trained parameter is on the way to the loss.",
        .node = losses[0].name(),
        .expected = "a float initializer on which the loss depends",
        .received = what_was_found(path, known, options),
        .remedy = "Name other parameters, or check that they were exported as initializers."});
  }
  return chosen;
}

}  // namespace steep
