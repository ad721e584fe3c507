#include "plan/recompute.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "ir/recompute.h"
#include "plan/assign_devices.h"

namespace steep {
namespace {

class NodeRecomputer {
 public:
  NodeRecomputer(Graph& g, const KernelOf& kernels, const RecomputedNodes& chosen)
      : g_(g), kernels_(kernels), chosen_(chosen) {}

  Recomputations run() {
    for (Node n : g_.nodes()) {
      if (n.phase() != Phase::backward) continue;
      for (int i = 0; i < n.input_count(); ++i) {
        const Value x = n.input(i);
        if (x && is_recomputed(x)) n.set_input(i, recompute(x, n));
      }
      ++reader_;
    }
    g_.prune();
    Recomputations live;
    for (Node n : g_.nodes()) {
      if (const auto it = added_.find(n.id()); it != added_.end()) live.push_back(it->second);
    }
    return live;
  }

 private:
  bool is_view(Node n) const {
    return n.id() < kernels_.size() && kernels_[n.id()] == nullptr && n.op() != kCopy;
  }

  /// The entry whose copy `x` is, or is a view of, for the present reader.
  const RecomputedNode* entry_of(Value x) const {
    Node p = x.producer();
    while (p && is_view(p) && p.phase() == Phase::forward) p = p.input(0).producer();
    return p && p.phase() == Phase::forward ? serving(chosen_, p.id(), reader_) : nullptr;
  }

  /// Whether readers read a copy of `x`. Forgets the copy that served earlier readers only.
  bool is_recomputed(Value x) {
    const RecomputedNode* entry = entry_of(x);
    if (entry == nullptr) return false;
    const auto [from, is_new] = from_.try_emplace(x.id(), entry->from);
    if (!is_new && from->second != entry->from) {
      from->second = entry->from;
      copies_.erase(x.id());
    }
    return true;
  }

  Value recompute(Value x, Node reader) {
    const auto recomputed = [&](Value v) { return is_recomputed(v); };
    return recompute_value(x, copies_, recomputed, [&](Value y) {
      const Node p = y.producer();
      const Graph::Scope scope(g_, Phase::backward, p.name() + "/again");
      const Node n = g_.add_node(p.op(), recomputed_inputs(p, copies_, recomputed),
                                 p.output_count(), p.attrs());
      g_.place_like(n, reader);
      for (int o = 0; o < p.output_count(); ++o) {
        if (!p.output(o)) continue;
        g_.set_type(n.output(o), p.output(o).type());
        copies_[p.output(o).id()] = n.output(o);
        from_[p.output(o).id()] = entry_of(y)->from;
      }
      added_[n.id()] = {n.id(), {p.id(), entry_of(y)->from}, reader_};
    });
  }

  Graph& g_;
  const KernelOf& kernels_;
  const RecomputedNodes& chosen_;
  uint32_t reader_ = 0;  // the place of the node of backward whose inputs are replaced
  RecomputedValues copies_;
  std::unordered_map<uint32_t, uint32_t> from_;        // by value id: `from` of the copy in copies_
  std::unordered_map<uint32_t, Recomputation> added_;  // by node id
};

}  // namespace

Recomputations recompute_nodes(Graph& graph, const KernelOf& kernels,
                               const RecomputedNodes& chosen) {
  return NodeRecomputer(graph, kernels, chosen).run();
}

const RecomputedNode* serving(const RecomputedNodes& chosen, uint32_t node, uint32_t reader) {
  const auto after = std::upper_bound(chosen.begin(), chosen.end(), RecomputedNode{node, reader});
  return after != chosen.begin() && std::prev(after)->id == node ? &*std::prev(after) : nullptr;
}

std::vector<char> can_recompute(const Graph& graph, const KernelOf& kernels) {
  std::vector<char> overwritten(graph.value_count(), 0), can(graph.node_slots(), 0);
  for (const Update& u : graph.updates()) {
    const Node writer = u.value.producer();
    overwritten[u.value.id()] = 1;
    if (!writer || writer.phase() == Phase::forward) overwritten[u.state.id()] = 1;
  }
  for (Node n : graph.nodes()) {
    const NodeKernel* kernel = kernels[n.id()];
    bool may = n.phase() == Phase::forward && kernel != nullptr && kernel->device == 0;
    for (int i = 0; i < n.input_count(); ++i) {
      Value x = n.input(i);
      while (x && x.producer() && kernels[x.producer().id()] == nullptr &&
             x.producer().op() != kCopy)
        x = x.producer().input(0);
      may = may && !(x && overwritten[x.id()]);
    }
    for (int o = 0; o < n.output_count(); ++o)
      may = may && !(n.output(o) && overwritten[n.output(o).id()]);
    can[n.id()] = may ? 1 : 0;
  }
  return can;
}

}  // namespace steep
