#include "plan/lives.h"

#include <algorithm>
#include <cstddef>

#include "plan/assign_devices.h"

namespace steep {
namespace {

/// What the values and nodes of a plan's graph stand for in the graph that was planned.
class Origins {
 public:
  Origins(const Graph& graph, const KernelOf& kernels, const Plan& plan,
          const Recomputations& added)
      : graph_(const_cast<Graph*>(&graph)),
        kernels_(kernels),
        added_(plan.graph->node_slots(), nullptr),
        place_(graph.node_slots(), 0) {
    for (const Recomputation& r : added) added_[r.copy] = &r;
    uint32_t place = 0;
    for (Node n : graph.nodes()) {
      if (n.phase() == Phase::backward) place_[n.id()] = place++;
    }
  }

  /// Null if forward or backward computes the node itself.
  const Recomputation* added(Node n) const { return added_[n.id()]; }

  uint32_t reader(Node n) const { return added(n) != nullptr ? added(n)->reader : place_[n.id()]; }

  /// The value whose memory `v` is in.
  Value viewed(Value v) const {
    for (Node p = v.producer(); p && is_view(p); p = v.producer()) v = p.input(0);
    return v;
  }

  /// The value that was planned; null if it is none. REQUIRES: v is not a view.
  Value original(Value v) const {
    const Node p = v.producer();
    const Recomputation* r = p ? added(p) : nullptr;
    if (r == nullptr) return v.id() < graph_->value_count() ? Value(graph_, v.id()) : Value();
    const Node of(graph_, r->of.id);
    for (int o = 0; o < p.output_count(); ++o) {
      if (p.output(o) == v) return of.output(o);
    }
    return {};
  }

 private:
  bool is_view(Node n) const {
    const uint32_t id = added(n) != nullptr ? added(n)->of.id : n.id();
    return kernels_[id] == nullptr && n.op() != kCopy;
  }

  Graph* graph_;
  const KernelOf& kernels_;
  std::vector<const Recomputation*> added_;  // by node id
  std::vector<uint32_t> place_;              // by node id: the place in backward
};

}  // namespace

Lives::Lives(const Graph& graph, const KernelOf& kernels, const Plan& plan,
             const Recomputations& added)
    : last_forward_(graph.value_count(), -1), touches_(graph.value_count()) {
  const Origins origins(graph, kernels, plan, added);
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Node n = plan.steps[s].node;
    if (!n) continue;
    const auto touch = [&](Value v, bool makes) {
      const Value base = v ? origins.viewed(v) : v;
      const Value x = base ? origins.original(base) : base;
      if (!x) return;
      if (s < plan.backward_begin) {
        last_forward_[x.id()] = static_cast<int>(s);
        return;
      }
      const Recomputation* r = base.producer() ? origins.added(base.producer()) : nullptr;
      touches_[x.id()].push_back({.step = static_cast<int>(s),
                                  .reader = origins.reader(n),
                                  .makes = makes,
                                  .copy = r != nullptr ? int64_t{r->of.from} : -1});
    };
    for (int i = 0; i < n.input_count(); ++i) touch(n.input(i), false);
    for (int o = 0; o < n.output_count(); ++o) touch(n.output(o), true);
  }
  note_peak(plan);
}

void Lives::note_peak(const Plan& plan) {
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
  near_.assign(steps + 1, 0);
  for (size_t s = 0; s + 1 < near_.size(); ++s)
    near_[s + 1] = near_[s] + (live[s] >= kNear * peak ? 1 : 0);
}

const Touch* Lives::next(Value v, int step) const {
  const std::vector<Touch>& touches = touches_[v.id()];
  const auto at =
      std::find_if(touches.begin(), touches.end(), [&](const Touch& t) { return t.step >= step; });
  return at == touches.end() ? nullptr : &*at;
}

const Touch* Lives::previous(Value v, int step) const {
  const std::vector<Touch>& touches = touches_[v.id()];
  const auto at =
      std::find_if(touches.rbegin(), touches.rend(), [&](const Touch& t) { return t.step < step; });
  return at == touches.rend() ? nullptr : &*at;
}

int Lives::last_before(Value v, int step) const {
  const Touch* touch = previous(v, step);
  return touch != nullptr ? touch->step : last_forward_[v.id()];
}

bool Lives::is_kept_at(Value v, int step) const {
  const Touch* touch = next(v, step);
  return touch != nullptr && !touch->makes;
}

double Lives::near_peak(int from, int to) const {
  if (to <= from + 1 || near_.back() == 0) return 0;
  const int steps = near_[static_cast<size_t>(to)] - near_[static_cast<size_t>(from) + 1];
  return static_cast<double>(steps) / near_.back();
}

}  // namespace steep
