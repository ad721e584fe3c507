#include "plan/memory_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_set>

#include "ops/op_def.h"
#include "plan/assign_devices.h"
#include "plan/choose_kernels.h"
#include "runtime/budget.h"
#include "steep/error.h"

namespace steep {
namespace {

RecomputedNodes united(const RecomputedNodes& a, const RecomputedNodes& b) {
  RecomputedNodes both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

RecomputedNodes without(const RecomputedNodes& a, const RecomputedNodes& b) {
  RecomputedNodes rest;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(rest));
  return rest;
}

/// How many variants of a graph are laid out: few enough that planning takes less than two seconds
/// for 1,000 nodes, and many enough for a thorough search of small graphs. The bound is a count,
/// not a time, so that equal graphs get equal plans.
int looks_for(size_t nodes) {
  return static_cast<int>(std::clamp<size_t>(50'000 / std::max<size_t>(nodes, 1), 60, 1500));
}

}  // namespace

double modelled_ms(Node n, const NodeKernel* kernel) {
  constexpr double kFlops = 1e8, kBytes = 1e7, kCall = 2e-3;  // rates per ms; ms per call
  if (kernel == nullptr) return 0;
  double out = 0, in = 0;
  for (int o = 0; o < n.output_count(); ++o)
    out += n.output(o) ? static_cast<double>(n.output(o).type().nbytes()) : 0;
  const OpDef* def = find_op(n.op());
  const bool some_rows = def != nullptr && def->reads_part;
  for (int i = 0; i < n.input_count(); ++i) {
    const double bytes = n.input(i) ? static_cast<double>(n.input(i).type().nbytes()) : 0;
    in += some_rows ? std::min(bytes, out) : bytes;
  }
  return kCall + std::max(kernel->kernel->flops() / kFlops, (in + out) / kBytes);
}

MemoryPlanner::MemoryPlanner(const Graph& graph, LayoutInput on)
    : graph_(graph), on_(on), can_(steep::can_recompute(graph, on.kernels)) {
  ms_.assign(graph.node_slots(), 0);
  const std::vector<Node> nodes = graph.nodes();
  for (Node n : nodes) {
    ms_[n.id()] = modelled_ms(n, on_.kernels[n.id()]);
    if (n.phase() == Phase::forward) forward_.push_back(n);
  }
  nodes_ = nodes.size();
}

const std::vector<MemoryPoint>& MemoryPlanner::search() {
  if (points_.empty()) {
    looks_left_ = looks_for(nodes_);
    descend();
    refine();
  }
  return points_;
}

MemoryPlanner::Variant MemoryPlanner::variant(const RecomputedNodes& recomputed) const {
  Variant v{.graph = graph_, .kernels = on_.kernels, .views = on_.views};
  if (recomputed.empty()) return v;
  std::vector<char> flags(graph_.node_slots(), 0);
  for (uint32_t id : recomputed) flags[id] = 1;
  v.recomputations = recompute_nodes(v.graph, on_.kernels, flags);
  v.kernels.resize(v.graph.node_slots(), nullptr);
  v.views.resize(v.graph.node_slots(), nullptr);
  for (const auto& [id, of] : v.recomputations) {
    v.kernels[id] = on_.kernels[of];
    v.views[id] = on_.views[of];
  }
  return v;
}

MemoryPlanner::State MemoryPlanner::look(const RecomputedNodes& recomputed) {
  poll();
  --looks_left_;
  Variant v = variant(recomputed);
  std::vector<uint32_t> recomputes(v.graph.node_slots());
  for (uint32_t id = 0; id < recomputes.size(); ++id) recomputes[id] = id;
  for (const auto& [id, of] : v.recomputations) recomputes[id] = of;
  const Plan plan = lay_out(std::move(v.graph), {v.kernels, v.views, on_.device, on_.devices});
  State state;
  state.point = {run_bytes(plan), 0, recomputed};
  state.arena = plan.arena_bytes;
  for (const Step& step : plan.steps) {
    if (step.node) state.point.ms += ms_[recomputes[step.node.id()]];
  }
  note_lives(plan, recomputes, state);
  note_peak(plan, state);
  return state;
}

/// For views in the plan's graph, by value id: the value that they view; null for other values.
std::vector<Value> MemoryPlanner::viewed_by(const Plan& plan,
                                            const std::vector<uint32_t>& recomputes) const {
  std::vector<Value> from(plan.graph->value_count());
  for (Node n : plan.graph->nodes()) {
    const bool view = n.id() >= graph_.node_slots() ? recomputes[n.id()] != n.id() &&
                                                          on_.kernels[recomputes[n.id()]] == nullptr
                                                    : on_.kernels[n.id()] == nullptr;
    if (!view || n.op() == kCopy || !n.input(0)) continue;
    const Value base = from[n.input(0).id()] ? from[n.input(0).id()] : n.input(0);
    for (int o = 0; o < n.output_count(); ++o)
      if (n.output(o)) from[n.output(o).id()] = base;
  }
  return from;
}

void MemoryPlanner::note_lives(const Plan& plan, const std::vector<uint32_t>& recomputes,
                               State& state) const {
  const int steps = static_cast<int>(plan.steps.size());
  const int backward = static_cast<int>(plan.backward_begin);
  state.lives.assign(graph_.value_count(), {});
  state.recomputed_at.assign(graph_.node_slots(), -1);
  auto touch = [&](Value v, int s) {
    if (!v || v.id() >= state.lives.size()) return;
    Life& life = state.lives[root({const_cast<Graph*>(&graph_), v.id()}).id()];
    if (s < backward) {
      life.last_forward = s;
    } else {
      if (life.first_backward < 0) life.first_backward = s;
      life.last_backward = s;
    }
  };
  const std::vector<Value> from = viewed_by(plan, recomputes);
  for (int s = 0; s < steps; ++s) {
    const Node n = plan.steps[static_cast<size_t>(s)].node;
    if (!n) continue;
    for (int i = 0; i < n.input_count(); ++i) {
      const Value x = n.input(i);
      if (x) touch(from[x.id()] ? from[x.id()] : x, s);
    }
    for (int o = 0; o < n.output_count(); ++o) touch(n.output(o), s);
    if (recomputes[n.id()] != n.id()) state.recomputed_at[recomputes[n.id()]] = s;
  }
}

void MemoryPlanner::note_peak(const Plan& plan, State& state) {
  constexpr double kNear = 0.9;  // times the peak: memory from here on counts as near it
  const size_t steps = plan.steps.size();
  std::vector<double> live(steps + 1, 0);
  for (const Buffer& b : plan.buffers) {
    if (b.storage != Storage::arena || b.device != 0 || b.first > b.last) continue;
    live[static_cast<size_t>(b.first)] += static_cast<double>(b.bytes);
    live[static_cast<size_t>(b.last) + 1] -= static_cast<double>(b.bytes);
  }
  for (size_t s = 1; s < live.size(); ++s) live[s] += live[s - 1];
  const double peak = *std::max_element(live.begin(), live.end());
  state.hot.assign(steps + 1, 0);
  for (size_t s = 0; s + 1 < state.hot.size(); ++s)
    state.hot[s + 1] = state.hot[s] + (live[s] >= kNear * peak ? 1 : 0);
}

/// Adds a point to the list, in which bytes fall and milliseconds rise.
void MemoryPlanner::note(const MemoryPoint& point) {
  const auto no_worse = [](const MemoryPoint& a, const MemoryPoint& b) {
    return a.bytes <= b.bytes && a.ms <= b.ms;
  };
  for (const MemoryPoint& p : points_) {
    if (no_worse(p, point)) return;
  }
  std::erase_if(points_, [&](const MemoryPoint& p) { return no_worse(point, p); });
  const auto at = std::find_if(points_.begin(), points_.end(),
                               [&](const MemoryPoint& p) { return p.bytes < point.bytes; });
  points_.insert(at, point);
}

/// The value at the start of a chain of views.
Value MemoryPlanner::root(Value v) const {
  for (Node p = v.producer(); p && on_.kernels[p.id()] == nullptr && p.op() != kCopy;
       p = v.producer())
    v = p.input(0);
  return v;
}

bool MemoryPlanner::chosen(const State& s, uint32_t node) const {
  return std::binary_search(s.point.recomputed.begin(), s.point.recomputed.end(), node);
}

/// The fraction of the steps near the peak that lie between two steps.
double MemoryPlanner::hot_between(const State& s, int from, int to) const {
  if (to <= from + 1 || s.hot.back() == 0) return 0;
  const int steps = s.hot[static_cast<size_t>(to)] - s.hot[static_cast<size_t>(from) + 1];
  return static_cast<double>(steps) / s.hot.back();
}

/// The bytes near the peak that recomputing the node's results frees.
double MemoryPlanner::relief_of(const State& s, Node n) const {
  double relief = 0;
  for (int o = 0; o < n.output_count(); ++o) {
    const Value y = n.output(o);
    if (!y) continue;
    const Life& life = s.lives[y.id()];
    if (life.first_backward >= 0)
      relief += static_cast<double>(y.type().nbytes()) *
                hot_between(s, life.last_forward, life.first_backward);
  }
  return relief;
}

std::vector<MemoryPlanner::Move> MemoryPlanner::moves(const State& s, bool all) const {
  std::vector<Move> moves;
  for (Node n : forward_) {
    if (can_[n.id()] && !chosen(s, n.id())) grow(s, n, all, moves);
  }
  std::stable_sort(moves.begin(), moves.end(),
                   [](const Move& a, const Move& b) { return a.score() > b.score(); });
  return moves;
}

/// The bytes near the peak of existing recomputed nodes that would have to run earlier, at step
/// `use`, because these nodes read them there.
double MemoryPlanner::pulled_bytes(const State& s, const RecomputedNodes& nodes, int use) const {
  double bytes = 0;
  std::vector<uint32_t> todo = nodes;
  std::unordered_set<uint32_t> ids(todo.begin(), todo.end());
  while (!todo.empty()) {
    const Node n(const_cast<Graph*>(&graph_), todo.back());
    todo.pop_back();
    for (int i = 0; i < n.input_count(); ++i) {
      const Value x = n.input(i) ? root(n.input(i)) : Value();
      const Node p = x ? x.producer() : Node();
      if (!p || !chosen(s, p.id()) || s.recomputed_at[p.id()] <= use) continue;
      bytes +=
          static_cast<double>(x.type().nbytes()) * hot_between(s, use, s.recomputed_at[p.id()]);
      if (ids.insert(p.id()).second) todo.push_back(p.id());
    }
  }
  return bytes;
}

/// The first step of backward that reads a result of the node.
int MemoryPlanner::first_backward(const State& s, Node n) const {
  int first = INT32_MAX;
  for (int o = 0; o < n.output_count(); ++o) {
    if (!n.output(o)) continue;
    const Life& life = s.lives[n.output(o).id()];
    if (life.first_backward >= 0) first = std::min(first, life.first_backward);
  }
  return first;
}

/// Adds a node to the move. `sources`: the values of forward that the move then reads.
void MemoryPlanner::recompute_too(const State& s, Node n, Move& move,
                                  std::vector<Value>& sources) const {
  move.nodes.push_back(n.id());
  move.ms += ms_[n.id()];
  std::erase_if(sources, [&](Value v) { return v.producer() == n; });
  for (int i = 0; i < n.input_count(); ++i) {
    if (!n.input(i)) continue;
    const Value x = root(n.input(i));
    const Node p = x.producer();
    if (!p || chosen(s, p.id()) || std::find(sources.begin(), sources.end(), x) != sources.end())
      continue;
    if (std::find(move.nodes.begin(), move.nodes.end(), p.id()) == move.nodes.end())
      sources.push_back(x);
  }
}

/// The producer of the largest of `sources` that can be recomputed; null if there is none.
/// Adds to *cost the bytes near the peak of all `sources`, if they are kept until step `use`.
Node MemoryPlanner::dearest(const State& s, const std::vector<Value>& sources, int use,
                            double* cost) const {
  double most = 0;
  Node best;
  for (Value v : sources) {
    const Life& life = s.lives[v.id()];
    const double bytes = static_cast<double>(v.type().nbytes()) *
                         hot_between(s, std::max(life.last_forward, life.last_backward), use);
    *cost += bytes;
    if (bytes <= most || !can_[v.producer().id()] || life.first_backward >= 0) continue;
    most = bytes;
    best = v.producer();
  }
  return best;
}

/// Finds moves that recompute `n`. The first move recomputes `n` alone and keeps its operands. Each
/// further move also recomputes the producer of the kept value that takes the most memory. Adds the
/// best of these moves, or all of them.
void MemoryPlanner::grow(const State& s, Node n, bool all, std::vector<Move>& moves) const {
  constexpr size_t kLongest = 64;
  const double gain = relief_of(s, n);
  if (gain <= 0) return;
  const int use = first_backward(s, n);
  Move move;
  std::optional<Move> best;
  std::vector<Value> sources;
  for (Node next = n; next;) {
    recompute_too(s, next, move, sources);
    double cost = 0;
    next = dearest(s, sources, use, &cost);
    move.relief = gain - cost - pulled_bytes(s, move.nodes, use);
    if (move.nodes.size() >= kLongest) next = {};
    if (move.relief <= 0) continue;
    if (all) {
      moves.push_back(move);
      std::sort(moves.back().nodes.begin(), moves.back().nodes.end());
    } else if (!best || move.score() > best->score()) {
      best = move;
    }
  }
  if (!best) return;
  std::sort(best->nodes.begin(), best->nodes.end());
  moves.push_back(std::move(*best));
}

/// The recomputed nodes that could be kept without a byte more near the peak.
RecomputedNodes MemoryPlanner::unneeded(const State& s) const {
  RecomputedNodes result;
  for (uint32_t id : s.point.recomputed) {
    const Node n(const_cast<Graph*>(&graph_), id);
    double bytes = 0;
    for (int o = 0; o < n.output_count(); ++o) {
      if (n.output(o) && s.recomputed_at[id] >= 0)
        bytes += hot_between(s, s.lives[n.output(o).id()].last_forward, s.recomputed_at[id]);
    }
    if (bytes <= 0) result.push_back(id);
  }
  return result;
}

/// The best moves that free `relief` bytes together, without those that failed before.
MemoryPlanner::Batch MemoryPlanner::choose(const State& now, double relief,
                                           const std::set<RecomputedNodes>& rejects) const {
  Batch batch;
  double total = 0;
  for (const Move& move : moves(now, false)) {
    if (rejects.count(move.nodes) != 0) continue;
    const size_t more = without(move.nodes, batch.nodes).size();
    if (more > 0 && more < move.nodes.size())
      continue;  // it shares some nodes, so its score has changed
    if (batch.count++ == 0) batch.first = move.nodes;
    batch.nodes = united(batch.nodes, move.nodes);
    total += move.relief;
    if (total >= relief) break;
  }
  return batch;
}

void MemoryPlanner::descend() {
  constexpr double kFirst = 1.0 / 12;
  constexpr int kMostFailures = 12;
  State now = look({});
  note(now.point);
  size_t least = now.point.bytes;
  double part = kFirst;  // fraction of the arena that the next moves are to free
  int failures = 0;
  std::set<RecomputedNodes> rejects;
  const int reserve = looks_left_ / 4;  // layouts for refine()
  while (looks_left_ > reserve && failures < kMostFailures) {
    const Batch batch = choose(now, part * static_cast<double>(now.arena), rejects);
    if (batch.count == 0) break;
    State next = look(united(now.point.recomputed, batch.nodes));
    note(next.point);
    if (next.point.bytes <= least + least / 100) {
      least = std::min(least, next.point.bytes);
      now = std::move(next);
      failures = 0;
      part = std::min(2 * part, kFirst);
      if (const RecomputedNodes extra = unneeded(now); !extra.empty())
        try_choice(without(now.point.recomputed, extra));
    } else if (batch.count > 1) {
      part /= 4;
    } else {
      rejects.insert(batch.first);
      ++failures;
    }
  }
}

void MemoryPlanner::try_choice(const RecomputedNodes& recomputed) {
  if (looks_left_ > 0 && choices_.insert(recomputed).second) note(look(recomputed).point);
}

void MemoryPlanner::refine() {
  const size_t width = static_cast<size_t>(std::max(looks_left_ / 64, 2));
  while (looks_left_ > 0) {
    const auto next = std::find_if(points_.begin(), points_.end(), [&](const MemoryPoint& p) {
      return parents_.count(p.recomputed) == 0;
    });
    if (next == points_.end()) return;
    const RecomputedNodes recomputed = next->recomputed;
    parents_.insert(recomputed);
    const State s = look(recomputed);
    std::vector<Move> more = moves(s, true);
    for (Node n : forward_) {  // also moves that seem to gain nothing alone, if there is time
      if (can_[n.id()] && !chosen(s, n.id())) more.push_back({.nodes = {n.id()}});
    }
    for (size_t i = 0; i < std::min(width, more.size()); ++i)
      try_choice(united(recomputed, more[i].nodes));
    RecomputedNodes dear = recomputed;
    std::stable_sort(dear.begin(), dear.end(),
                     [&](uint32_t a, uint32_t b) { return ms_[a] > ms_[b]; });
    for (size_t i = 0; i < std::min(width, dear.size()); ++i)
      try_choice(without(recomputed, {dear[i]}));
  }
}

Plan MemoryPlanner::plan(const RecomputedNodes& recomputed,
                         std::unordered_map<uint32_t, NodeKernel>& kernels) const {
  Variant v = variant(recomputed);
  for (const auto& [id, of] : v.recomputations) {
    if (on_.kernels[of] == nullptr) continue;  // a view has no kernel
    const Node n(&v.graph, id);
    std::string why_not;
    ChosenKernel choice =
        at_node(n, [&] { return choose_kernel(on_.devices.host(), spec_of(n), &why_not); });
    if (!choice.kernel || choice.candidate != on_.kernels[of]->candidate) {
      throw InternalError({.what = "A node that runs again has another kernel than at first.",
                           .node = n.name(),
                           .op = n.op(),
                           .received = why_not});
    }
    NodeKernel& kernel = kernels[id];
    kernel = {std::move(choice.kernel), choice.candidate};
    v.kernels[id] = &kernel;
  }
  return lay_out(std::move(v.graph), {v.kernels, v.views, on_.device, on_.devices});
}

const MemoryPoint& fastest_within(std::span<const MemoryPoint> points, const MemoryLimit& limit,
                                  size_t plain) {
  for (const MemoryPoint& point : points) {
    if (limit.allows(point.bytes)) return point;
  }
  if (limit.least) return points.back();
  const size_t least = limit.counted(points.back().bytes);
  throw OutOfMemoryError(
      {.what = "No plan fits the memory limit.",
       .expected = "at most " + exact_bytes_text(limit.bytes),
       .received = fmt::format(
           "at least {} for parameters, moments, inputs, results and intermediate values; "
           "{} without a limit",
           exact_bytes_text(least), exact_bytes_text(limit.counted(plain))),
       .remedy =
           "Use a memory limit of at least that, a smaller batch, or accumulate the gradients "
           "of parts of it."});
}

Plan fit(const Graph& graph, const LayoutInput& on, const MemoryLimit& limit,
         std::unordered_map<uint32_t, NodeKernel>& kernels) {
  Plan plain = lay_out(graph, on);
  if (limit.allows(run_bytes(plain))) return plain;
  MemoryPlanner planner(graph, on);
  const std::vector<MemoryPoint>& points = planner.search();
  Plan plan = planner.plan(fastest_within(points, limit, run_bytes(plain)).recomputed, kernels);
  plan.found = points;
  return plan;
}

Plan make_plan(Graph graph, const Devices& devices, std::vector<Declined> decomposed) {
  return plan_within(std::move(graph), devices, std::move(decomposed), {});
}

Plan plan_within(Graph graph, const Devices& devices, std::vector<Declined> decomposed,
                 const MemoryLimit& limit) {
  KernelGraph kernel_graph = choose_kernels(graph, devices);
  kernel_graph.declined.insert(kernel_graph.declined.begin(),
                               std::make_move_iterator(decomposed.begin()),
                               std::make_move_iterator(decomposed.end()));
  if (limit.is_none()) return make_plan(std::move(graph), std::move(kernel_graph), devices);
  const std::vector<int> device = assign_devices(graph, kernel_graph);
  const KernelOf kernels = kernels_of(graph, kernel_graph);
  const ViewOf views = views_of(graph, kernel_graph);
  Plan plan = fit(graph, {kernels, views, device, devices}, limit, kernel_graph.kernels);
  return complete(std::move(plan), std::move(kernel_graph));
}

}  // namespace steep
