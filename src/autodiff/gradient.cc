#include "autodiff/gradient.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <unordered_map>

#include "ops/build.h"
#include "ops/op_def.h"
#include "ops/wide.h"
#include "steep/error.h"

namespace steep {
namespace {

/// The part of a graph through which gradients flow: nodes that depend on a `wrt` value and on
/// which an output depends, through float values and without ops that stop gradients.
struct Path {
  std::vector<Node> nodes;          // producers before consumers
  std::vector<char> active_values;  // by value id: depends on a wrt value
};

bool carries_gradient(Value v) { return v && is_float(v.dtype()); }

bool stops(Node n) {
  const OpDef* def = find_op(n.op());
  return def != nullptr && def->stops_gradient;
}

Path find_path(const Graph& g, std::span<const Value> outputs, std::span<const Value> wrt) {
  const std::vector<Node> order = g.nodes();
  std::vector<char> active(g.value_count(), 0);
  for (Value v : wrt) active[v.id()] = 1;
  std::vector<Node> descendants;
  for (Node n : order) {
    if (stops(n)) continue;
    bool any = false;
    for (int i = 0; i < n.input_count() && !any; ++i) {
      any = carries_gradient(n.input(i)) && active[n.input(i).id()];
    }
    if (!any) continue;
    for (int i = 0; i < n.output_count(); ++i) {
      if (carries_gradient(n.output(i))) active[n.output(i).id()] = 1;
    }
    descendants.push_back(n);
  }
  std::vector<char> wanted(g.value_count(), 0);
  for (Value v : outputs) wanted[v.id()] = 1;
  std::vector<Node> nodes;
  for (auto it = descendants.rbegin(); it != descendants.rend(); ++it) {
    bool any = false;
    for (int i = 0; i < it->output_count() && !any; ++i) {
      any = carries_gradient(it->output(i)) && wanted[it->output(i).id()];
    }
    if (!any) continue;
    for (int i = 0; i < it->input_count(); ++i) {
      if (it->input(i)) wanted[it->input(i).id()] = 1;
    }
    nodes.push_back(*it);
  }
  std::reverse(nodes.begin(), nodes.end());
  return {std::move(nodes), std::move(active)};
}

/// Replaces each node on the path that has no vjp by its decomposition.
void expand_composites(Graph& g, std::span<Value> outputs, std::span<const Value> wrt) {
  for (bool again = true; again;) {
    again = false;
    std::unordered_map<uint32_t, Value> now;  // value id → replacement
    for (Node n : find_path(g, outputs, wrt).nodes) {
      const OpDef* def = find_op(n.op());
      if (def == nullptr || def->vjp || def->decompose == nullptr) continue;
      Graph::Scope scope(g, n.phase(), n.name());
      const std::vector<Value> parts = needs_float32(n) ? in_float32(n) : def->decompose(n);
      for (int i = 0; i < n.output_count(); ++i) {
        Value y = n.output(i);
        if (!y || !parts.at(static_cast<size_t>(i))) continue;
        g.replace_uses(y, parts[static_cast<size_t>(i)]);
        now[y.id()] = parts[static_cast<size_t>(i)];
      }
      g.erase(n);
      again = true;
    }
    for (Value& y : outputs) {
      if (auto it = now.find(y.id()); it != now.end()) y = it->second;
    }
  }
}

std::vector<Obstacle> obstacles_on(const Graph& g, const Path& path,
                                   std::span<const Value> outputs) {
  std::vector<Obstacle> obstacles;
  for (Node n : path.nodes) {
    const OpDef* def = find_op(n.op());
    if (def != nullptr && (def->vjp || def->decompose != nullptr)) continue;
    obstacles.push_back(
        {.op = n.op(),
         .node = n.name(),
         .path = path_to_output(g, n, outputs),
         .remedy = "Freeze the parameters that feed this node, replace it by differentiable "
                   "operators, or add a gradient rule (docs/add_an_op.md).",
         .what = "There is no gradient for the operator."});
  }
  return obstacles;
}

class ReverseSweep {
 public:
  ReverseSweep(Graph& g, const Path& path, Phase phase) : g_(g), path_(path), phase_(phase) {}

  void seed(Value output, Value gradient) {
    if (!gradient && output.type().kind != Kind::tensor) {
      throw ShapeError(
          {.what = "Only tensor outputs can be differentiated without a given output gradient.",
           .node = output.name(),
           .expected = "a tensor",
           .received = to_string(output.type()),
           .remedy = "Name another output."});
    }
    if (!gradient) gradient = expand_like(scalar(g_, 1, output.dtype()), output);
    add(output, gradient);
  }

  void run() {
    for (auto it = path_.nodes.rbegin(); it != path_.nodes.rend(); ++it) step(*it);
  }

  Value gradient(Value v) const {
    auto it = gradients_.find(v.id());
    return it == gradients_.end() ? Value() : it->second;
  }

 private:
  void step(Node n) {
    Grads dy;
    bool any = false;
    for (int i = 0; i < n.output_count(); ++i) {
      dy.push_back(n.output(i) ? gradient(n.output(i)) : Value());
      any = any || dy.back();
    }
    if (!any) return;
    Graph::Scope scope(g_, phase_, "grad/" + n.name());
    const Grads dx = apply_rule(n, dy, add_gradients);
    const auto inputs = static_cast<size_t>(n.input_count());
    if (dx.size() > inputs &&
        std::any_of(dx.begin() + n.input_count(), dx.end(), [](Value v) { return bool(v); })) {
      throw InternalError({.what = "A gradient rule returned too many gradients.",
                           .node = n.name(),
                           .op = n.op(),
                           .expected = fmt::format("at most {}", n.input_count()),
                           .received = fmt::format("{}", dx.size())});
    }
    for (size_t i = 0; i < std::min(dx.size(), inputs); ++i) {
      Value x = n.input(static_cast<int>(i));
      if (!dx[i] || !carries_gradient(x) || !path_.active_values[x.id()]) continue;
      add(x, gradient_for(n, dx[i], x));
    }
  }

  void add(Value v, Value gradient) {
    auto [it, first] = gradients_.try_emplace(v.id(), gradient);
    if (!first) it->second = it->second + gradient;
  }

  Graph& g_;
  const Path& path_;
  Phase phase_;
  std::unordered_map<uint32_t, Value> gradients_;
};

}  // namespace

std::vector<Value> add_gradients(Graph& g, std::span<const Value> outputs,
                                 std::span<const Value> seeds, std::span<const Value> wrt,
                                 Phase phase) {
  std::vector<Value> targets(outputs.begin(), outputs.end());
  expand_composites(g, targets, wrt);
  const Path path = find_path(g, targets, wrt);
  if (const auto obstacles = obstacles_on(g, path, targets); !obstacles.empty()) {
    std::string all;
    for (const Obstacle& o : obstacles)
      all += fmt::format("\n    {} ({}): {}", o.node, o.op, o.path);
    throw ModelError(
        {.what = fmt::format("{} node(s) between the parameters and the loss have no gradient:{}",
                             obstacles.size(), all),
         .node = obstacles.front().node,
         .op = obstacles.front().op,
         .expected = "operators with a gradient",
         .received = obstacles.front().op,
         .remedy = obstacles.front().remedy});
  }
  ReverseSweep sweep(g, path, phase);
  {
    Graph::Scope scope(g, phase, "grad");
    for (size_t i = 0; i < targets.size(); ++i) {
      sweep.seed(targets[i], i < seeds.size() ? seeds[i] : Value());
    }
  }
  sweep.run();
  std::vector<Value> gradients;
  for (Value v : wrt) gradients.push_back(sweep.gradient(v));
  return gradients;
}

std::vector<Obstacle> find_obstacles(Graph& g, std::span<const Value> outputs,
                                     std::span<const Value> wrt) {
  return obstacles_on(g, find_path(g, outputs, wrt), outputs);
}

std::string path_to_output(const Graph& g, Node from, std::span<const Value> outputs) {
  constexpr size_t kShown = 8;
  const auto users = g.users();
  std::unordered_map<uint32_t, Node> came_from{{from.id(), Node()}};
  Value target;
  Node last;
  std::deque<Node> queue{from};
  while (!queue.empty() && !target) {
    const Node n = queue.front();
    queue.pop_front();
    for (int i = 0; i < n.output_count() && !target; ++i) {
      const Value y = n.output(i);
      if (!y) continue;
      last = n;
      if (std::find(outputs.begin(), outputs.end(), y) != outputs.end()) target = y;
      for (Node user : users[y.id()]) {
        if (came_from.try_emplace(user.id(), n).second) queue.push_back(user);
      }
    }
  }
  std::vector<std::string> names;
  for (Node n = last; n; n = came_from.at(n.id())) names.push_back(n.name());
  std::reverse(names.begin(), names.end());
  if (names.size() > kShown) {
    names.erase(names.begin() + kShown / 2, names.end() - kShown / 2);
    names.insert(names.begin() + kShown / 2, "…");
  }
  std::string output = target ? target.name() : "";
  for (const Output& o : g.outputs()) {
    if (target && o.value == target) output = o.name;
  }
  if (!output.empty()) names.push_back(output);
  return fmt::format("{}", fmt::join(names, " → "));
}

}  // namespace steep
