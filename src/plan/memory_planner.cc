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
    ascend();
    refine();
  }
  return points_;
}

MemoryPlanner::Variant MemoryPlanner::variant(const RecomputedNodes& recomputed) const {
  Variant v{.graph = graph_, .kernels = on_.kernels, .views = on_.views};
  if (recomputed.empty()) return v;
  v.added = recompute_nodes(v.graph, on_.kernels, recomputed);
  v.kernels.resize(v.graph.node_slots(), nullptr);
  v.views.resize(v.graph.node_slots(), nullptr);
  for (const Recomputation& r : v.added) {
    v.kernels[r.copy] = on_.kernels[r.of.id];
    v.views[r.copy] = on_.views[r.of.id];
  }
  return v;
}

MemoryPlanner::State MemoryPlanner::look(const RecomputedNodes& recomputed) {
  poll();
  --looks_left_;
  Variant v = variant(recomputed);
  const Plan plan = lay_out(std::move(v.graph), {v.kernels, v.views, on_.device, on_.devices});
  State state;
  state.point = {run_bytes(plan), 0, recomputed};
  state.arena = plan.arena_bytes;
  state.lives = Lives(graph_, on_.kernels, plan, v.added);
  for (const Step& step : plan.steps) {
    if (step.node && step.node.id() < ms_.size()) state.point.ms += ms_[step.node.id()];
  }
  for (const Recomputation& r : v.added) state.point.ms += ms_[r.of.id];
  return state;
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

/// The bytes near the peak that are free if the node's results are not kept until `use`.
double MemoryPlanner::relief_of(const State& s, Node n, const Touch& use) const {
  double relief = 0;
  for (int o = 0; o < n.output_count(); ++o) {
    const Value y = n.output(o);
    if (!y || !s.lives.is_kept_at(y, use.step)) continue;
    relief += static_cast<double>(y.type().nbytes()) *
              s.lives.near_peak(s.lives.last_before(y, use.step), s.lives.next(y, use.step)->step);
  }
  return relief;
}

/// The steps of backward until which a result of the node is kept near the peak; one for each gap
/// between two steps that need it.
std::vector<Touch> MemoryPlanner::uses_of(const State& s, Node n) const {
  std::vector<Touch> uses;
  for (int o = 0; o < n.output_count(); ++o) {
    if (!n.output(o)) continue;
    for (const Touch& t : s.lives.touches(n.output(o))) {
      if (!t.makes && s.lives.near_peak(s.lives.last_before(n.output(o), t.step), t.step) > 0)
        uses.push_back(t);
    }
  }
  std::sort(uses.begin(), uses.end(),
            [](const Touch& a, const Touch& b) { return a.step < b.step; });
  const auto same = [](const Touch& a, const Touch& b) { return a.step == b.step; };
  uses.erase(std::unique(uses.begin(), uses.end(), same), uses.end());
  return uses;
}

/// The entry that makes backward run the node for `use`. If it is the first time, all later readers
/// get the copy, even if they run before `use` in another variant.
RecomputedNode MemoryPlanner::entry_for(const State& s, Node n, const Touch& use) const {
  bool first = serving(s.point.recomputed, n.id(), UINT32_MAX) == nullptr;
  for (int o = 0; o < n.output_count(); ++o)
    first = first && !(n.output(o) && s.lives.previous(n.output(o), use.step) != nullptr);
  return {n.id(), first ? 0 : use.reader};
}

std::vector<MemoryPlanner::Move> MemoryPlanner::moves(const State& s, bool all) const {
  std::vector<Move> moves;
  for (Node n : forward_) {
    if (!can_[n.id()]) continue;
    for (const Touch& use : uses_of(s, n)) grow(s, n, use, all, moves);
  }
  std::stable_sort(moves.begin(), moves.end(),
                   [](const Move& a, const Move& b) { return a.score() > b.score(); });
  return moves;
}

/// Whether a reader of `x` at `use` gets a copy that is not in memory there: one that is made later
/// in this plan, which is returned, or a further one (*is_new).
const Touch* MemoryPlanner::pulled_copy(const State& s, Value x, const Touch& use,
                                        bool* is_new) const {
  *is_new = false;
  const RecomputedNode* entry = serving(s.point.recomputed, x.producer().id(), use.reader);
  if (entry == nullptr) return nullptr;
  const Touch* before = s.lives.previous(x, use.step);
  if (before != nullptr && before->copy == int64_t{entry->from}) return nullptr;
  const Touch* after = s.lives.next(x, use.step);
  if (after != nullptr && after->copy == int64_t{entry->from}) return after;
  *is_new = true;
  return nullptr;
}

MemoryPlanner::Needs MemoryPlanner::needs_of(const State& s, const RecomputedNodes& nodes,
                                             const Touch& use) const {
  Needs needs;
  double most = 0;
  std::vector<uint32_t> todo;
  std::unordered_set<uint32_t> seen;  // nodes
  for (const RecomputedNode& n : nodes) {
    todo.push_back(n.id);
    seen.insert(n.id);
  }
  while (!todo.empty()) {
    const Node n(const_cast<Graph*>(&graph_), todo.back());
    todo.pop_back();
    for (int i = 0; i < n.input_count(); ++i) {
      const Value x = n.input(i) ? root(n.input(i)) : Value();
      const Node p = x ? x.producer() : Node();
      if (!p || s.lives.is_kept_at(x, use.step) || !seen.insert(p.id()).second) continue;
      const auto bytes = static_cast<double>(x.type().nbytes());
      bool is_new = false;
      const Touch* copy = pulled_copy(s, x, use, &is_new);
      if (copy != nullptr || is_new) {
        if (copy != nullptr) needs.bytes += bytes * s.lives.near_peak(use.step, copy->step);
        if (is_new) needs.ms += ms_[p.id()];
        todo.push_back(p.id());
        continue;
      }
      const double kept = bytes * s.lives.near_peak(s.lives.last_before(x, use.step), use.step);
      needs.bytes += kept;
      if (kept <= most || !can_[p.id()]) continue;
      most = kept;
      needs.dearest = p;
    }
  }
  return needs;
}

/// Finds moves that run `n` again for `use`. The first move recomputes `n` alone and keeps its
/// operands. Each further move also recomputes the producer of the kept value that takes the most
/// memory. Adds the best of these moves, or all of them.
void MemoryPlanner::grow(const State& s, Node n, const Touch& use, bool all,
                         std::vector<Move>& moves) const {
  constexpr size_t kLongest = 64;
  const double gain = relief_of(s, n, use);
  if (gain <= 0) return;
  Move move;
  std::optional<Move> best;
  double ms = 0;
  for (Node next = n; next;) {
    const RecomputedNode entry = entry_for(s, next, use);
    move.nodes.insert(std::upper_bound(move.nodes.begin(), move.nodes.end(), entry), entry);
    ms += ms_[next.id()];
    const Needs needs = needs_of(s, move.nodes, use);
    next = move.nodes.size() < kLongest ? needs.dearest : Node();
    move.ms = ms + needs.ms;
    move.relief = gain - needs.bytes;
    if (move.relief <= 0) continue;
    if (all) {
      moves.push_back(move);
    } else if (!best || move.score() > best->score()) {
      best = move;
    }
  }
  if (best) moves.push_back(std::move(*best));
}

/// The recomputed nodes that could be kept without a byte more near the peak.
RecomputedNodes MemoryPlanner::unneeded(const State& s) const {
  RecomputedNodes result;
  for (const RecomputedNode& entry : s.point.recomputed) {
    const Node n(const_cast<Graph*>(&graph_), entry.id);
    double bytes = 0;
    for (int o = 0; o < n.output_count(); ++o) {
      if (!n.output(o)) continue;
      for (const Touch& t : s.lives.touches(n.output(o))) {
        if (t.makes && t.copy == int64_t{entry.from})
          bytes += s.lives.near_peak(s.lives.last_before(n.output(o), t.step), t.step);
      }
    }
    if (bytes <= 0) result.push_back(entry);
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
  // Layouts for refine(). In a large graph, which has few, the end of the descent frees much more
  // than changes of single choices.
  constexpr int kFew = 100;
  const int reserve = looks_left_ / (looks_left_ < kFew ? 12 : 4);
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

/// Entries by which each node of backward computes all that it needs again, and nothing is kept for
/// the next one, in the order of backward. Nothing if there are more than `most`.
RecomputedNodes MemoryPlanner::everything(size_t most) const {
  RecomputedNodes all;
  uint32_t place = 0;
  for (Node reader : graph_.nodes()) {
    if (reader.phase() != Phase::backward) continue;
    std::unordered_set<uint32_t> seen;
    std::vector<Node> todo{reader};
    while (!todo.empty()) {
      const Node n = todo.back();
      todo.pop_back();
      for (int i = 0; i < n.input_count(); ++i) {
        const Node p = n.input(i) ? root(n.input(i)).producer() : Node();
        if (!p || !can_[p.id()] || !seen.insert(p.id()).second) continue;
        all.push_back({p.id(), place});
        todo.push_back(p);
      }
      if (all.size() > most) return {};
    }
    ++place;
  }
  return all;
}

/// Takes entries away, in this order, again and again while the plan does not grow by it.
void MemoryPlanner::keep_what_is_free(std::span<const RecomputedNode> order) {
  const int reserve = looks_left_ / 2;  // layouts for what follows
  RecomputedNodes now(order.begin(), order.end());
  std::sort(now.begin(), now.end());
  size_t least = look(now).point.bytes;
  for (bool changed = true; changed;) {
    changed = false;
    for (const RecomputedNode& entry : order) {
      if (looks_left_ <= reserve) return;
      if (!std::binary_search(now.begin(), now.end(), entry)) continue;
      RecomputedNodes fewer = without(now, {entry});
      const MemoryPoint point = look(fewer).point;
      note(point);
      if (point.bytes > least) continue;
      least = point.bytes;
      now = std::move(fewer);
      changed = true;
    }
  }
}

/// Starts where backward keeps nothing, and keeps what costs no byte. The descent gives up one
/// value at a time: it does not find values that free memory only together.
void MemoryPlanner::ascend() {
  constexpr int kLooksOfEach = 8;
  RecomputedNodes all = everything(static_cast<size_t>(looks_left_ / kLooksOfEach));
  if (all.empty()) return;
  keep_what_is_free(all);
  std::reverse(all.begin(), all.end());
  keep_what_is_free(all);
}

void MemoryPlanner::try_choice(const RecomputedNodes& recomputed) {
  if (looks_left_ > 0 && choices_.insert(recomputed).second) note(look(recomputed).point);
}

/// Changes of a variant: the moves that free most first, then each entry that could be added.
std::vector<RecomputedNodes> MemoryPlanner::additions(const State& s) const {
  std::vector<RecomputedNodes> more;
  for (Move& move : moves(s, true)) more.push_back(std::move(move.nodes));
  for (Node n : forward_) {  // these seem to gain nothing alone
    if (!can_[n.id()]) continue;
    std::set<uint32_t> readers{0};
    for (int o = 0; o < n.output_count(); ++o) {
      if (!n.output(o)) continue;
      for (const Touch& t : s.lives.touches(n.output(o))) readers.insert(t.reader);
    }
    for (uint32_t reader : readers) {
      if (!std::binary_search(s.point.recomputed.begin(), s.point.recomputed.end(),
                              RecomputedNode{n.id(), reader}))
        more.push_back({{n.id(), reader}});
    }
  }
  return more;
}

/// Tries some additions to a variant, and some removals.
void MemoryPlanner::expand(const RecomputedNodes& recomputed, size_t width) {
  const State s = look(recomputed);
  const std::vector<RecomputedNodes> more = additions(s);
  for (size_t i = 0; i < std::min(width, more.size()); ++i) try_choice(united(recomputed, more[i]));
  RecomputedNodes dear = recomputed;
  std::stable_sort(dear.begin(), dear.end(), [&](const RecomputedNode& a, const RecomputedNode& b) {
    return ms_[a.id] > ms_[b.id];
  });
  for (size_t i = 0; i < std::min(width, dear.size()); ++i)
    try_choice(without(recomputed, {dear[i]}));
}

/// Changes the best variants, until no small change is better or no layouts are left.
void MemoryPlanner::refine() {
  const size_t width = static_cast<size_t>(std::max(looks_left_ / 64, 2));
  std::set<RecomputedNodes> expanded;
  while (looks_left_ > 0) {
    const auto next = std::find_if(points_.begin(), points_.end(), [&](const MemoryPoint& p) {
      return expanded.count(p.recomputed) == 0;
    });
    if (next == points_.end()) return;
    const RecomputedNodes recomputed = next->recomputed;
    expanded.insert(recomputed);
    expand(recomputed, width);
  }
}

Plan MemoryPlanner::plan(const RecomputedNodes& recomputed,
                         std::unordered_map<uint32_t, NodeKernel>& kernels) const {
  Variant v = variant(recomputed);
  for (const auto& [id, of, reader] : v.added) {
    if (on_.kernels[of.id] == nullptr) continue;  // a view has no kernel
    const Node n(&v.graph, id);
    std::string why_not;
    ChosenKernel choice =
        at_node(n, [&] { return choose_kernel(on_.devices.host(), spec_of(n), &why_not); });
    if (!choice.kernel || choice.candidate != on_.kernels[of.id]->candidate) {
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
  const std::vector<int> device = assign_devices(graph, kernel_graph);
  const KernelOf kernels = kernels_of(graph, kernel_graph);
  const ViewOf views = views_of(graph, kernel_graph);
  Plan plan = fit(graph, {kernels, views, device, devices}, limit, kernel_graph.kernels);
  return complete(std::move(plan), std::move(kernel_graph), limit.offloaded);
}

}  // namespace steep
